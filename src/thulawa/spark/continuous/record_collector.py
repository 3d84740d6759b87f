"""The record collector of a task: outputs go to the host's producer."""

import time
from collections.abc import Callable
from typing import Any

from thulawa.brokers.port import Broker, StreamProducer
from thulawa.core.records import Headers
from thulawa.errors import ProductionError, SerializationError, UnknownTopic
from thulawa.runtime.blocks import Block, ForwardBlock
from thulawa.runtime.context import Forward, TaskContext
from thulawa.runtime.output_encoder import OutputEncoder, chosen_partition, record_size
from thulawa.spark.continuous.continuous_program import ContinuousProgram
from thulawa.state.codec import ColumnCodec
from thulawa.topology.nodes import Sink

_MISSING_SECONDS = 1.0


class TopicLimits:
    """The size limits of output topics, cached; a missing topic is looked up every second."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._limits: dict[str, int] = {}
        self._missing: dict[str, float] = {}

    def of(self, topic: str) -> int:
        """Return the most bytes of a record; raise `ProductionError` if there is no such topic."""
        if topic not in self._limits:
            if self._missing.get(topic, 0.0) <= time.monotonic():
                try:
                    limit = self._broker.max_record_size(topic)
                except UnknownTopic:
                    self._missing[topic] = time.monotonic() + _MISSING_SECONDS
                else:
                    self._limits[topic] = limit
                    return limit
            raise ProductionError(f"there is no topic {topic!r}: create it")
        return self._limits[topic]


class RecordCollector:
    """Serialize the outputs of one task and send them."""

    def __init__(
        self, program: ContinuousProgram, producer: StreamProducer, limits: TopicLimits
    ) -> None:
        self._program = program
        self._producer = producer
        self._limits = limits
        self._encoder = OutputEncoder(program.options, self.send, limits.of)
        self._routes = {
            topic: (program.topic_name(topic), one.router(), ColumnCodec(one.value_serde))
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
            self._send_internal(topic, key, value, timestamp, headers)
            return
        encoded = self._encoder.encode(sink, topic, key, value, timestamp, headers)
        if encoded is None:
            return
        raw_key, raw_value, headers = encoded
        partition = None
        if sink is not None and sink.partitioner is not None:
            count = self._program.outputs[topic]
            partition = chosen_partition(sink.partitioner, key, value, count, sink.name)
        self._producer.send(topic, partition, raw_key, raw_value, timestamp, headers)

    def sender(self, sink: Sink, topic: str) -> Forward | None:
        """Return a fast path for a sink that only serializes; None if it needs more."""
        plain = self._plain(sink, topic)
        if plain is None:
            return None
        dump_key, dump_value, limit = plain
        produce, send = self._producer.send, self.send

        def to_topic(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            try:
                key_bytes = None if key is None else dump_key(key)
                value_bytes = None if value is None else dump_value(value)
            except Exception:  # noqa: BLE001 send() serializes again and asks the handler
                return send(sink, topic, key, value, timestamp, headers)
            if record_size(key_bytes, value_bytes, headers) > limit:
                return send(sink, topic, key, value, timestamp, headers)
            return produce(topic, None, key_bytes, value_bytes, timestamp, headers)

        return to_topic

    def block_sender(self, sink: Sink, topic: str) -> ForwardBlock | None:
        """Return the fast path for blocks of records; None if the sink needs more."""
        forward = self.sender(sink, topic)
        if forward is None:
            return None

        def to_topic(block: Block) -> None:
            for offset, timestamp, key, value, headers in block.records():
                if self._encoder.context is not None:
                    self._encoder.context.offset = offset
                forward(key, value, timestamp, headers)

        return to_topic

    def _plain(
        self, sink: Sink, topic: str
    ) -> tuple[Callable[[Any], bytes | None], Callable[[Any], bytes | None], int] | None:
        key_serde, value_serde = sink.key_serde, sink.value_serde
        if sink.internal or sink.partitioner is not None or not key_serde or not value_serde:
            return None
        try:
            limit = self._encoder.limit(topic)
        except ProductionError:  # no such topic: the handler decides for each record
            return None
        assert limit is not None
        return key_serde.serialize, value_serde.serialize, limit

    def _send_internal(
        self, topic: str, key: Any, value: Any, timestamp: int, headers: Headers
    ) -> None:
        name, route, codec = self._routes[topic]
        partition, key = route(key, value)
        codec.check(value)
        raw_key, raw_value = codec.encode([key]), codec.encode([value])
        if (size := record_size(raw_key, raw_value, headers)) > self._limits.of(name):
            raise SerializationError(f"the record has {size} bytes, more than {name!r} accepts")
        self._producer.send(name, partition, raw_key, raw_value, timestamp, headers)
