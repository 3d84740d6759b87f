"""The base of record collectors that serialize outputs."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from thulawa.core.records import Headers
from thulawa.core.serdes import Serde
from thulawa.errors import ProductionError
from thulawa.runtime.blocks import Block, ForwardBlock
from thulawa.runtime.context import Forward, TaskContext
from thulawa.runtime.output_encoder import (
    OutputEncoder,
    TopicLimit,
    chosen_partition,
    record_size,
)
from thulawa.runtime.task_options import TaskOptions
from thulawa.topology.nodes import Sink


class SerializingCollector(ABC):
    """Serialize the outputs of a task, and pass them to the methods of a subclass.

    ``limit_of`` returns the size limit of a topic; ``outputs`` are the partition counts of topics
    whose sinks have a partitioner.
    """

    def __init__(
        self, options: TaskOptions, limit_of: TopicLimit, outputs: Mapping[str, int]
    ) -> None:
        self._encoder = OutputEncoder(options, self.send, limit_of)
        self._outputs = outputs

    @abstractmethod
    def _send_internal(
        self, topic: str, key: Any, value: Any, timestamp: int, headers: Headers
    ) -> None:
        """Send a record to a repartition."""

    @abstractmethod
    def _add(
        self,
        topic: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers,
    ) -> None:
        """Add a record."""

    @abstractmethod
    def _adder(self, topic: str) -> Callable[[Any], None]:
        """Return a function that adds tuples of key, value, headers, timestamp and None."""

    @abstractmethod
    def _add_columns(
        self,
        topic: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps: Sequence[int],
        headers: Sequence[Headers],
    ) -> None:
        """Add many records for the partitions of their keys."""

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
            count = self._outputs[topic]
            partition = chosen_partition(sink.partitioner, key, value, count, sink.name)
        self._add(topic, partition, raw_key, raw_value, timestamp, headers)

    def sender(self, sink: Sink, topic: str) -> Forward | None:
        """Return a fast path for a sink that only serializes; None if it needs more."""
        plain = self._plain(sink, topic)
        if plain is None:
            return None
        limit, *serdes = plain
        dump_key, dump_value = (serde.serialize for serde in serdes)
        add, send = self._adder(topic), self.send

        def to_topic(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            try:
                key_bytes = None if key is None else dump_key(key)
                value_bytes = None if value is None else dump_value(value)
            except Exception:  # noqa: BLE001 send() serializes again and asks the handler
                return send(sink, topic, key, value, timestamp, headers)
            if limit is not None and record_size(key_bytes, value_bytes, headers) > limit:
                return send(sink, topic, key, value, timestamp, headers)
            return add((key_bytes, value_bytes, headers, timestamp, None))

        return to_topic

    def block_sender(self, sink: Sink, topic: str) -> ForwardBlock | None:
        """Return the fast path for blocks of records; None if the sink needs more."""
        plain = self._plain(sink, topic)
        if plain is None:
            return None
        limit, *serdes = plain
        dump_keys, dump_values = (serde.dump_column for serde in serdes)
        add_columns, send = self._add_columns, self.send

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
                add_columns(topic, keys, values, block.timestamps, block.headers)

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
