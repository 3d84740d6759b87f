"""The record collector of a task: outputs go to the sink, a later stage or a repartition topic."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from thulawa.brokers.embedded.packing import Fields
from thulawa.core.records import Headers
from thulawa.core.serdes import Serde
from thulawa.core.types import TopicPartition
from thulawa.errors import ProductionError, SerializationError
from thulawa.runtime.blocks import Block, ForwardBlock, RawRecord
from thulawa.runtime.context import Forward, TaskContext
from thulawa.runtime.output_encoder import OutputEncoder, chosen_partition, record_size
from thulawa.runtime.planning import StagedSubTopology
from thulawa.runtime.shuffled import with_sender
from thulawa.spark.micro_batch.output_limits import limit_of
from thulawa.spark.micro_batch.program import Program
from thulawa.spark.micro_batch.wire import SINK, Outgoing, Packed
from thulawa.state.codec import ColumnCodec
from thulawa.topology.nodes import Sink

# most of a row, uncompressed: Spark and Arrow allow no row of 2 GiB; a record is never split
ROW_BYTES = 2**24


class TaskOutput:
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
        self._program = program
        self._plan = program.plan
        self._place = f"{part.group.id:04}/{number:06}"
        if source is not None:  # a sub-topology may read several
            self._place += f"/{source.topic}/{source.partition:06}"
        self._number = number
        self._limit_of = partial(limit_of, program.limits, program.run)
        self._encoder = OutputEncoder(program.options, self.send, self._limit_of)
        self._outgoing = Outgoing()
        self._shuffled: dict[tuple[str, int], list[RawRecord]] = defaultdict(list)
        self._sent = 0
        self._rows = 0
        self._routes = {
            topic: (one, one.router(), ColumnCodec(one.value_serde), program.broker_name(topic))
            for topic, one in program.plan.repartitions.items()
        }

    def attach(self, context: TaskContext) -> None:
        """Set the task that sends to this collector."""
        self._encoder.context = context

    def send(
        self, sink: Sink | None, topic: str, key: Any, value: Any, timestamp: int, headers: Headers
    ) -> None:
        """Send one record."""
        if sink is not None and sink.internal:
            self._send_inside(topic, key, value, timestamp, headers)
            return
        encoded = self._encoder.encode(sink, topic, key, value, timestamp, headers)
        if encoded is None:
            return
        raw_key, raw_value, headers = encoded
        partition = None
        if sink is not None and sink.partitioner is not None:
            count = self._program.outputs[topic]
            partition = chosen_partition(sink.partitioner, key, value, count, sink.name)
        self._outgoing.add(topic, partition, raw_key, raw_value, timestamp, headers)

    def sender(self, sink: Sink, topic: str) -> Forward | None:
        """Return a fast path for a sink that only serializes; None if it needs more."""
        plain = self._plain(sink, topic)
        if plain is None:
            return None
        limit, *serdes = plain
        dump_key, dump_value = (serde.serialize for serde in serdes)
        take, send = self._outgoing.adder(topic), self.send

        def to_topic(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            try:
                key_bytes = None if key is None else dump_key(key)
                value_bytes = None if value is None else dump_value(value)
            except Exception:  # noqa: BLE001 send() serializes again and asks the handler
                return send(sink, topic, key, value, timestamp, headers)
            if limit is not None and record_size(key_bytes, value_bytes, headers) > limit:
                return send(sink, topic, key, value, timestamp, headers)
            return take((key_bytes, value_bytes, headers, timestamp, None))

        return to_topic

    def block_sender(self, sink: Sink, topic: str) -> ForwardBlock | None:
        """Return the fast path for blocks of records; None if the sink needs more."""
        plain = self._plain(sink, topic)
        if plain is None:
            return None
        limit, *serdes = plain
        dump_keys, dump_values = (serde.dump_column for serde in serdes)
        take, send = self._outgoing.add_columns, self.send

        def to_topic(block: Block) -> None:
            try:
                keys, values = dump_keys(block.keys), dump_values(block.values)
                _check_sizes(keys, values, block.headers, limit)
            except Exception:  # noqa: BLE001 send() serializes again and asks the handler
                for offset, timestamp, key, value, headers in block.records():
                    if self._encoder.context is not None:
                        self._encoder.context.offset = offset  # for errors
                    send(sink, topic, key, value, timestamp, headers)
            else:
                take(topic, Fields(keys, values, block.headers, block.timestamps))

        return to_topic

    def _plain(self, sink: Sink, topic: str) -> tuple[int | None, Serde[Any], Serde[Any]] | None:
        """Return size limit and serdes of a sink that only serializes; None if it needs more."""
        key_serde, value_serde = sink.key_serde, sink.value_serde
        if sink.internal or sink.partitioner is not None:
            return None
        if key_serde is None or value_serde is None:
            return None
        try:
            return self._encoder.limit(topic), key_serde, value_serde
        except ProductionError:  # no such topic: the handler decides for each record
            return None

    def _send_inside(
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


def _check_sizes(
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Sequence[Headers],
    limit: int | None,
) -> None:
    """Raise `ProductionError` if a record exceeds the limit; most blocks do not even in total."""
    if limit is None:
        return
    total = sum(len(data) for column in (keys, values) for data in column if data is not None)
    if total > limit or any(headers):
        sizes = map(record_size, keys, values, headers)
        if any(size > limit for size in sizes):
            raise ProductionError("a record is too large")
