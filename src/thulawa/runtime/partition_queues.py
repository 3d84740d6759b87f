"""The buffered records of one topic-partition.

A record is deserialized, and its timestamp extracted, when it becomes the head of its queue: only
the heads are needed to choose the next partition. If there is a single partition, whole blocks are
deserialized at once.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator

from thulawa.core.durations import milliseconds
from thulawa.core.records import LAST_TIMESTAMP
from thulawa.errors import SerializationError, StreamError, TimestampError
from thulawa.runtime.blocks import Block, RawRecord
from thulawa.runtime.context import NO_TIME, TaskContext
from thulawa.runtime.graph import Graph
from thulawa.runtime.handlers import ErrorRecord, as_stream_error
from thulawa.runtime.task_options import TaskOptions
from thulawa.topology.nodes import Source


class RecordQueue:
    """The buffered records of one topic-partition, in offset order."""

    def __init__(
        self,
        topic: str,
        partition: int,
        source: Source,
        graph: Graph,
        context: TaskContext,
        options: TaskOptions,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.forward = graph.entry(source)
        self.forward_block = graph.block_entry(source)
        self.partition_time = NO_TIME
        self._source = source
        self._context = context
        self._options = options
        self._max_ahead = None if options.max_ahead is None else milliseconds(options.max_ahead)
        self._load_key = None if source.key_serde is None else source.key_serde.deserialize
        self._load_value = None if source.value_serde is None else source.value_serde.deserialize
        self._waiting: deque[RawRecord] = deque()
        self._blocks: deque[Block] = deque()  # after the single records
        self._head: RawRecord | None = None
        self._head_raw: RawRecord | None = None
        self._raw: RawRecord | None = None
        self._current_block: Block | None = None  # if the records taken last are a block

    def extend(self, records: Iterable[RawRecord]) -> None:
        """Add records, in offset order."""
        while self._blocks:
            self._unpack_block()
        self._waiting.extend(records)

    def extend_block(self, block: Block) -> None:
        """Add a block of records, in offset order."""
        self._blocks.append(block)

    def held(self) -> list[RawRecord]:
        """Return the buffered records as they were read from the topic."""
        head = [self._head_raw] if self._head is not None and self._head_raw is not None else []
        return [*head, *self._waiting, *(one for block in self._blocks for one in block.records())]

    @property
    def first_offset(self) -> int | None:
        """The offset of the first buffered record; None if there is none."""
        if self._head is not None and self._head_raw is not None:
            return self._head_raw[0]
        if self._waiting:
            return self._waiting[0][0]
        return self._blocks[0].offsets[0] if self._blocks else None

    @property
    def raw(self) -> RawRecord | None:
        """The current record as it was read from the topic; in a block by the context's offset."""
        if self._current_block is None:
            return self._raw
        index = bisect_left(self._current_block.offsets, self._context.offset)
        offsets, timestamps, keys, values, headers = self._current_block
        return offsets[index], timestamps[index], keys[index], values[index], headers[index]

    def head_time(self) -> int | None:
        """Return the timestamp of the next record, or None."""
        while self._head is None and (self._waiting or self._blocks):
            if not self._waiting:
                self._unpack_block()
            self._head = self._read_next()
        return None if self._head is None else self._head[1]

    def pop_block(self) -> Block | None:
        """Remove and return the next records as a block; None: they must be taken one by one."""
        if self._head is not None or self._waiting or not self._blocks:
            return None
        read = self._read_block(self._blocks[0])
        if read is None:
            self._unpack_block()
            return None
        self._current_block = self._blocks.popleft()
        newest = max(read.timestamps)
        self.partition_time = max(self.partition_time, newest)
        return read

    def _unpack_block(self) -> None:
        self._waiting.extend(self._blocks.popleft().records())

    def _read_block(self, block: Block) -> Block | None:
        """Deserialize a block; None if a record needs to be examined by itself."""
        source, times = self._source, block.timestamps
        if source.timestamp_extractor is not None or not times:
            return None
        if min(times) < 0 or max(times) > self._latest():
            return None
        keys, values = block.keys, block.values
        try:
            if source.key_serde is not None:
                keys = source.key_serde.load_column(keys)
            if source.value_serde is not None:
                values = source.value_serde.load_column(values)
        except Exception:  # noqa: BLE001 they are read again one by one, which finds the error
            return None
        return block._replace(keys=keys, values=values)

    def _latest(self) -> int:
        """Return the highest valid timestamp."""
        if self._max_ahead is None:
            return LAST_TIMESTAMP
        return min(LAST_TIMESTAMP, self._context.wall_clock_time + self._max_ahead)

    def pop(self) -> RawRecord | None:
        """Remove and return the next record; None if there is none."""
        self._current_block = None
        head, self._head = self._head, None
        if head is None:
            head = self._read_next()
        self._raw = self._head_raw
        return head

    def __iter__(self) -> Iterator[RawRecord]:
        """Remove and yield the single records; blocks are not unpacked."""
        self._current_block = None
        waiting, only_serdes = self._waiting, self._source.timestamp_extractor is None
        load_key, load_value = self._load_key, self._load_value
        latest = self._latest()
        while True:
            # `pop` inlined for valid records
            while only_serdes and waiting and self._head is None:
                raw = waiting[0]
                offset, timestamp, key, value, headers = raw
                if not 0 <= timestamp <= latest:
                    break
                try:
                    if key is not None and load_key is not None:
                        key = load_key(key)
                    if value is not None and load_value is not None:
                        value = load_value(value)
                except Exception:  # noqa: BLE001 it is read again by `pop`, which finds the error
                    break
                if timestamp > self.partition_time:
                    self.partition_time = timestamp
                self._raw = raw
                waiting.popleft()
                yield offset, timestamp, key, value, headers
            record = self.pop()
            if record is None:
                return
            yield record

    def __len__(self) -> int:
        count = len(self._waiting) + (self._head is not None)
        return count + sum(len(block.offsets) for block in self._blocks)

    def _read_next(self) -> RawRecord | None:
        waiting = self._waiting
        while waiting:
            self._head_raw = raw = waiting.popleft()
            record = self._read(raw)
            if record is not None:
                self.partition_time = max(self.partition_time, record[1])
                return record
        return None

    def _read(self, raw: RawRecord) -> RawRecord | None:
        offset, timestamp, key, value, headers = raw
        source = self._source
        try:
            if source.key_serde is not None:
                key = source.key_serde.loads(key)
            if source.value_serde is not None:
                value = source.value_serde.loads(value)
            if source.timestamp_extractor is not None:
                timestamp = source.timestamp_extractor(timestamp, key, value, self.partition_time)
        except Exception as error:  # noqa: BLE001 serdes and extractors are the user's
            when = "while a record was read"
            self._reject(raw, as_stream_error(error, SerializationError, when))
            return None
        reason = self._out_of_bounds(timestamp)
        if reason is not None:
            if self._options.on_bad_timestamp == "fail":
                self._reject(raw, TimestampError(reason))
                return None
            if self._options.on_bad_timestamp == "skip" or self.partition_time < 0:
                self._context.drop(source.name)
                return None
            timestamp = self.partition_time
        return offset, timestamp, key, value, headers

    def _out_of_bounds(self, timestamp: object) -> str | None:
        if not isinstance(timestamp, int):
            return f"a timestamp is an int, in milliseconds, not a {type(timestamp).__name__}"
        if timestamp < 0:
            return f"the timestamp {timestamp} is negative"
        if timestamp > LAST_TIMESTAMP:
            return f"the timestamp {timestamp} does not fit into 64 bits"
        if self._max_ahead is not None and timestamp > self._latest():
            return f"the timestamp {timestamp} is more than {self._max_ahead} ms ahead of the clock"
        return None

    def _reject(self, raw: RawRecord, error: StreamError) -> None:
        offset, timestamp, key, value, headers = raw
        name, position = self._source.name, (self.topic, self.partition, offset)
        error.node = name
        error.topic, error.partition, error.offset = position
        record = ErrorRecord(name, *position, key, value, timestamp, headers)
        self._context.handle(self._options.handlers.deserialization, error, record)
