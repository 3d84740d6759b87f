"""The record collector of a task: outputs go to the sink, a later stage or a repartition topic."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from thulawa.brokers.embedded.packing import Fields
from thulawa.core.records import Headers
from thulawa.core.types import TopicPartition
from thulawa.errors import SerializationError
from thulawa.runtime.blocks import RawRecord
from thulawa.runtime.collectors import SerializingCollector
from thulawa.runtime.output_encoder import record_size
from thulawa.runtime.planning import StagedSubTopology
from thulawa.runtime.shuffled import with_sender
from thulawa.spark.micro_batch.output_limits import limit_of
from thulawa.spark.micro_batch.program import Program
from thulawa.spark.micro_batch.wire import SINK, Outgoing, Packed
from thulawa.state.codec import ColumnCodec

# most of a row, uncompressed: Spark and Arrow allow no row of 2 GiB; a record is never split
ROW_BYTES = 2**24


class TaskOutput(SerializingCollector):
    """The collector of one task; in the first stage, of the one partition ``source`` it reads.

    Every row that it sends has its own ``place``, and places sort in the order of sending, because
    Spark may deliver rows in any order.
    """

    def __init__(
        self,
        program: Program,
        part: StagedSubTopology,
        number: int,
        source: TopicPartition | None = None,
    ) -> None:
        self._limit_of = partial(limit_of, program.limits, program.run)
        super().__init__(program.options, self._limit_of, program.outputs)
        self._program = program
        self._plan = program.plan
        self._place = f"{part.group.id:04}/{number:06}"
        if source is not None:  # a sub-topology may read several
            self._place += f"/{source.topic}/{source.partition:06}"
        self._number = number
        self._outgoing = Outgoing()
        self._shuffled: dict[tuple[str, int], list[RawRecord]] = defaultdict(list)
        self._sent = 0
        self._rows = 0
        self._routes = {
            topic: (one, one.router(), ColumnCodec(one.value_serde), program.broker_name(topic))
            for topic, one in program.plan.repartitions.items()
        }

    def _add(
        self,
        topic: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers,
    ) -> None:
        self._outgoing.add(topic, partition, key, value, timestamp, headers)

    def _adder(self, topic: str) -> Callable[[Any], None]:
        return self._outgoing.adder(topic)

    def _add_columns(
        self,
        topic: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps: Sequence[int],
        headers: Sequence[Headers],
    ) -> None:
        self._outgoing.add_columns(topic, Fields(keys, values, headers, timestamps))

    def _send_internal(
        self, topic: str, key: Any, value: Any, timestamp: int, headers: Headers
    ) -> None:
        repartition, route, codec, name = self._routes[topic]
        partition, key = route(key, value)
        codec.check(value)
        if not repartition.is_topic:
            # its offset is its position among the outputs of this task
            record = (self._sent, timestamp, key, value, headers)
            self._shuffled[topic, partition].append(record)
            self._sent += 1
            return
        raw_key, raw_value = codec.encode([key]), codec.encode([value])
        headers = with_sender(self._place, headers)
        if (size := record_size(raw_key, raw_value, headers)) > self._limit_of(name):
            raise SerializationError(f"the record has {size} bytes, more than {name!r} takes")
        self._outgoing.add(name, partition, raw_key, raw_value, timestamp, headers)

    def send_change(
        self, topic: str, record: tuple[bytes, bytes | None], timestamp: int, headers: Headers
    ) -> None:
        """Send a changelog record, to the partition of the task's own number."""
        self._outgoing.add(topic, self._number, *record, timestamp, headers)

    def take(self) -> Iterator[Packed]:
        """Remove and yield what was sent since the last call, in rows of bounded size."""
        shuffled, self._shuffled = self._shuffled, defaultdict(list)
        for topic, partition in list(shuffled):
            part = self._plan.parts[self._plan.readers[topic]]
            task = part.task_of(topic, partition)
            codec = self._routes[topic][2]
            for data in codec.encode_chunks(shuffled.pop((topic, partition)), ROW_BYTES):
                yield self._row(part.stage, task, topic, partition, data)
        for topic, partition, data in self._outgoing.take():
            yield self._row(SINK, self._number, topic, partition, data)

    def _row(self, stage: int, task: int, topic: str, partition: int, data: bytes) -> Packed:
        self._rows += 1
        place = f"{self._place}/{self._rows:020}"
        return self._program.row(stage, task, topic, partition, place, data)

    def clear(self) -> None:
        """Discard what was sent by a failed attempt."""
        self._outgoing.clear()
        self._shuffled.clear()
