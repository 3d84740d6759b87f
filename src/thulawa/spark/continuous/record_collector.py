"""The record collector of a task: outputs go to the host's producer."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from thulawa.brokers.port import Broker, StreamProducer
from thulawa.core.records import Headers
from thulawa.errors import ProductionError, SerializationError, UnknownTopic
from thulawa.runtime.collectors import SerializingCollector
from thulawa.runtime.output_encoder import record_size
from thulawa.spark.continuous.continuous_program import ContinuousProgram
from thulawa.state.codec import ColumnCodec

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


class RecordCollector(SerializingCollector):
    """Send the outputs of one task to the broker."""

    def __init__(
        self, program: ContinuousProgram, producer: StreamProducer, limits: TopicLimits
    ) -> None:
        super().__init__(program.options, limits.of, program.outputs)
        self._producer = producer
        self._limits = limits
        self._routes = {
            topic: (program.topic_name(topic), one.router(), ColumnCodec(one.value_serde))
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
        self._producer.send(topic, partition, key, value, timestamp, headers)

    def _adder(self, topic: str) -> Callable[[Any], None]:
        produce = self._producer.send

        def add(record: Any) -> None:
            key, value, headers, timestamp, partition = record
            produce(topic, partition, key, value, timestamp, headers)

        return add

    def _add_columns(
        self,
        topic: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps: Sequence[int],
        headers: Sequence[Headers],
    ) -> None:
        self._producer.send_columns(topic, keys, values, timestamps, headers)

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
