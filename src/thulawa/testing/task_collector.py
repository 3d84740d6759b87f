"""The record collectors of a test driver's tasks: they write outputs to topics, as bytes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from thulawa.core.records import Headers, Windowed
from thulawa.core.serdes import Serde
from thulawa.runtime.context import Forward, TaskContext
from thulawa.runtime.output_encoder import OutputEncoder, chosen_partition
from thulawa.runtime.planning import Plan
from thulawa.runtime.task_options import TaskOptions
from thulawa.state.codec import ColumnCodec
from thulawa.testing.driver_topics import WrittenRecord
from thulawa.topology.nodes import Sink


@dataclass(frozen=True)
class Outputs:
    """The configuration that the collectors of all tasks share."""

    plan: Plan
    options: TaskOptions
    receive: Callable[[str, int | None, WrittenRecord], None]  # partition None: by key
    repartition: Callable[[str, int, WrittenRecord, Any], None]  # with the key that is sent
    key_serde: Serde[Any]
    partitions: int
    # sinks for which the topology names no key serde: they write windowed keys as Kafka does
    without_key_serde: frozenset[str]


class TaskCollector:
    """The collector of one task."""

    def __init__(self, outputs: Outputs) -> None:
        self._outputs = outputs
        self._encoder = OutputEncoder(outputs.options, self.send)
        self._routes = {
            topic: (one.router(), ColumnCodec(one.value_serde))
            for topic, one in outputs.plan.repartitions.items()
        }

    def attach(self, context: TaskContext) -> None:
        """Set the context of the collector's task."""
        self._encoder.context = context

    def send(
        self, sink: Sink | None, topic: str, key: Any, value: Any, timestamp: int, headers: Headers
    ) -> None:
        """Write one output."""
        if sink is not None and sink.internal:
            route, codec = self._routes[topic]
            partition, sent_key = route(key, value)
            codec.check(value)
            # encode and decode as on Spark: only plain data can be shuffled
            sent_key, value = codec.decode(codec.encode([sent_key, value]))
            record = WrittenRecord(key, value, timestamp, headers)
            self._outputs.repartition(topic, partition, record, sent_key)
        else:
            self._send(sink, topic, key, value, timestamp, headers)

    def _send(
        self,
        sink: Sink | None,
        topic: str,
        key: Any,
        value: Any,
        timestamp: int,
        headers: Headers,
        failed: Exception | None = None,
    ) -> None:
        encoded = self._encoder.encode(sink, topic, key, value, timestamp, headers, failed)
        if encoded is None:
            return
        partition = None
        if sink is not None and sink.partitioner is not None:
            count = self._outputs.partitions
            partition = chosen_partition(sink.partitioner, key, value, count, sink.name)
        serdes = (None, None) if sink is None else (self._reads_key(sink, key), sink.value_serde)
        raw_key, raw_value, headers = encoded
        record = WrittenRecord(raw_key, raw_value, timestamp, headers, *serdes)
        self._outputs.receive(topic, partition, record)

    def sender(self, sink: Sink, topic: str) -> Forward | None:
        """Return a faster `send` for a sink that only serializes, or None."""
        key_serde, value_serde = sink.key_serde, sink.value_serde
        if sink.internal or sink.partitioner or self._outputs.options.max_record_bytes is not None:
            return None
        if key_serde is None or value_serde is None:
            return None
        dump_key, dump_value = key_serde.dumps, value_serde.dumps
        receive, send, reads_key = self._outputs.receive, self._send, self._reads_key

        def to_topic(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            try:
                raw_key, raw_value = dump_key(key), dump_value(value)
            except Exception as error:  # noqa: BLE001 the handler decides about any error
                send(sink, topic, key, value, timestamp, headers, error)
                return
            serde = reads_key(sink, key)
            record = WrittenRecord(raw_key, raw_value, timestamp, headers, serde, value_serde)
            receive(topic, None, record)

        return to_topic

    def block_sender(self, sink: Sink, topic: str) -> None:
        """Return None: records are sent one by one."""

    def _reads_key(self, sink: Sink, key: Any) -> Serde[Any] | None:
        if sink.name in self._outputs.without_key_serde and not isinstance(key, Windowed):
            return self._outputs.key_serde
        return sink.key_serde
