"""The record collectors of a test driver's tasks: they write outputs to topics, as bytes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from thulawa.core.records import Headers, Windowed
from thulawa.core.serdes import Serde
from thulawa.runtime.context import TaskContext
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
            return
        encoded = self._encoder.encode(sink, topic, key, value, timestamp, headers)
        if encoded is None:
            return
        raw_key, raw_value, headers = encoded
        if sink is None:  # a dead letter
            record = WrittenRecord(raw_key, raw_value, timestamp, headers)
            self._outputs.receive(topic, None, record)
            return
        chosen = None
        if sink.partitioner is not None:
            count = self._outputs.partitions
            chosen = chosen_partition(sink.partitioner, key, value, count, sink.name)
        key_serde = sink.key_serde
        if sink.name in self._outputs.without_key_serde and not isinstance(key, Windowed):
            key_serde = self._outputs.key_serde
        record = WrittenRecord(raw_key, raw_value, timestamp, headers, key_serde, sink.value_serde)
        self._outputs.receive(topic, chosen, record)

    def sender(self, sink: Sink, topic: str) -> None:
        """Return None: there is no faster `send` for any sink."""

    block_sender = sender
