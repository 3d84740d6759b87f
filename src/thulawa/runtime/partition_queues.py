"""The records of one partition that wait for their turn, and which partition is next.

A record is read (deserialized, given its timestamp) when it becomes the head of its queue,
not before: the choice between partitions needs the heads only. Where there is no choice, a block
is read as one.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from thulawa.core.durations import milliseconds
from thulawa.core.errors import SerializationError, StreamError, TimestampError
from thulawa.core.records import LAST_TIMESTAMP
from thulawa.runtime.blocks import Block, ForwardBlock, RawRecord
from thulawa.runtime.context import NO_TIME, Forward, TaskContext
from thulawa.runtime.handlers import ErrorRecord
from thulawa.runtime.task_options import TaskOptions
from thulawa.topology.nodes import Source

__all__ = ["RawRecord", "RecordQueue"]


class RecordQueue:
    """One partition of one topic, in offset order."""

    def __init__(
        self,
        topic: str,
        partition: int,
        source: Source,
        forward: Forward,
        forward_block: ForwardBlock | None,
        context: TaskContext,
        options: TaskOptions,
        answer: Callable[[StreamError, ErrorRecord], None],
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.forward = forward
        self.forward_block = forward_block
        self.partition_time = NO_TIME
        self._source = source
        self._context = context
        self._options = options
        self._answer = answer
        self._ahead = None if options.max_ahead is None else milliseconds(options.max_ahead)
        reads = source.key_serde or source.value_serde or source.timestamp_extractor
        self._as_it_is = not reads and self._ahead is None  # nothing to decode or to check
        self._load_key = None if source.key_serde is None else source.key_serde.deserialize
        self._load_value = None if source.value_serde is None else source.value_serde.deserialize
        self._waiting: deque[RawRecord] = deque()
        self._blocks: deque[Block] = deque()  # behind those that wait
        self._head: RawRecord | None = None
        self._read_from: RawRecord | None = None
        self._raw: RawRecord | None = None
        self._taken: Block | None = None  # what was taken last was this, as it came

    def extend(self, records: Iterable[RawRecord]) -> None:
        """Add records, in offset order."""
        while self._blocks:
            self._open_block()
        self._waiting.extend(records)

    def extend_block(self, block: Block) -> None:
        """Add a block of records, in offset order."""
        self._blocks.append(block)

    def held(self) -> list[RawRecord]:
        """Return the records that wait, as they came."""
        head = [self._read_from] if self._head is not None and self._read_from is not None else []
        return [*head, *self._waiting, *(one for block in self._blocks for one in block.records())]

    @property
    def raw(self) -> RawRecord | None:
        """The record that was taken last, as it came; of a block the one at the task's offset."""
        if self._taken is None:
            return self._raw
        place = bisect_left(self._taken.offsets, self._context.offset)
        offsets, timestamps, keys, values, headers = self._taken
        return offsets[place], timestamps[place], keys[place], values[place], headers[place]

    def head_time(self) -> int | None:
        """Return the timestamp of the next record; None: there is none."""
        while self._head is None and (self._waiting or self._blocks):
            if not self._waiting:
                self._open_block()
            self._head = self._read_next()
        return None if self._head is None else self._head[1]

    def pop_block(self) -> Block | None:
        """Take the next records as one, read; None: the next ones must be taken one by one."""
        if self._head is not None or self._waiting or not self._blocks:
            return None
        block = self._blocks[0]
        read = self._read_block(block)
        if read is None:
            self._open_block()
            return None
        self._taken = self._blocks.popleft()
        newest = max(read.timestamps)
        self.partition_time = max(self.partition_time, newest)
        return read

    def _open_block(self) -> None:
        self._waiting.extend(self._blocks.popleft().records())

    def _read_block(self, block: Block) -> Block | None:
        """Read the records of a block; None: some must be looked at, or all."""
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
        except Exception:  # noqa: BLE001 they are read again, with an account of what is wrong
            return None
        return block._replace(keys=keys, values=values)

    def _latest(self) -> int:
        """Return the highest timestamp with which nothing is wrong."""
        if self._ahead is None:
            return LAST_TIMESTAMP
        return min(LAST_TIMESTAMP, self._context.wall_clock_time + self._ahead)

    def pop(self) -> RawRecord | None:
        """Take the next record that waits."""
        self._taken = None
        head = self._head
        if head is None:
            waiting = self._waiting
            if self._as_it_is and waiting and 0 <= (timestamp := waiting[0][1]) <= LAST_TIMESTAMP:
                if timestamp > self.partition_time:
                    self.partition_time = timestamp
                self._raw = head = waiting.popleft()
                return head
            head = self._read_next()
        else:
            self._head = None
        self._raw = self._read_from
        return head

    def __iter__(self) -> Iterator[RawRecord]:
        """Take the records that wait, one after the other; blocks are not opened."""
        self._taken = None
        waiting, only_serdes = self._waiting, self._source.timestamp_extractor is None
        load_key, load_value = self._load_key, self._load_value
        latest = self._latest()
        while True:
            # what `pop` does to a record with which nothing is wrong, without its calls
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
                except Exception:  # noqa: BLE001 it is read again, with an account of what is wrong
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
            self._read_from = raw = waiting.popleft()
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
            self._refuse(raw, _named(error))
            return None
        reason = self._out_of_bounds(timestamp)
        if reason is not None:
            if self._options.on_bad_timestamp == "fail":
                self._refuse(raw, TimestampError(reason))
                return None
            if self._options.on_bad_timestamp == "skip" or self.partition_time < 0:
                self._context.drop(source.name)
                return None
            timestamp = self.partition_time
        return offset, timestamp, key, value, headers

    def _out_of_bounds(self, timestamp: object) -> str | None:
        if not isinstance(timestamp, int):
            return f"a timestamp is milliseconds, an int, not a {type(timestamp).__name__}"
        if timestamp < 0:
            return f"the timestamp {timestamp} is negative"
        if timestamp > LAST_TIMESTAMP:
            return f"the timestamp {timestamp} does not fit into 64 bits"
        if self._ahead is not None and timestamp > self._context.wall_clock_time + self._ahead:
            return f"the timestamp {timestamp} is more than {self._ahead} ms ahead of the clock"
        return None

    def _refuse(self, raw: RawRecord, error: StreamError) -> None:
        offset, timestamp, key, value, headers = raw
        error.node = self._source.name
        error.topic, error.partition, error.offset = self.topic, self.partition, offset
        self._answer(
            error,
            ErrorRecord(
                self._source.name,
                self.topic,
                self.partition,
                offset,
                key,
                value,
                timestamp,
                headers,
            ),
        )


def _named(error: Exception) -> StreamError:
    if isinstance(error, StreamError):
        return error
    wrapped = SerializationError(f"{type(error).__name__} while a record was read")
    wrapped.__cause__ = error
    return wrapped
