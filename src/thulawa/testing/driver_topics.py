"""The input and output topics of a `TopologyTestDriver`."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count, repeat
from typing import Any, NamedTuple, TypeAlias, overload

from thulawa.core.durations import Duration, milliseconds
from thulawa.core.records import Headers, Record
from thulawa.core.serdes import Serde
from thulawa.errors import ConfigurationError, SerializationError

_ABSENT: Any = object()


class WrittenRecord(NamedTuple):
    """A record of a topic, and the serdes that wrote it; None: it is not serialized."""

    key: Any
    value: Any
    timestamp: int
    headers: Headers = ()
    key_serde: Serde[Any] | None = None
    value_serde: Serde[Any] | None = None


class UnreadRecords(deque[WrittenRecord]):
    """The records of a topic that have not been read yet."""

    read = 0

    @property
    def total(self) -> int:
        """How many records were ever written."""
        return len(self) + self.read


InputRecord: TypeAlias = tuple[int, Any, Any, Headers]  # timestamp, key and value as bytes


@dataclass(eq=False, repr=False)
class TestInputTopic:
    """Write to a topic by its serdes; bytes are written as they are.

    Each record is processed completely before the call returns, unless the driver runs batches. A
    record without a timestamp gets the topic's time, which then advances by ``auto_advance``.
    """

    __test__ = False  # not a test class

    _topic: str
    _write: Callable[[str, list[InputRecord]], None]
    _key_serde: Serde[Any]
    _value_serde: Serde[Any]
    _time: int
    _auto_advance: int

    @overload
    def pipe_input(self, value: Any, /) -> None: ...

    @overload
    def pipe_input(
        self, key: Any, value: Any, timestamp: int | None = None, headers: Headers = ()
    ) -> None: ...

    def pipe_input(
        self,
        key: Any,
        value: Any = _ABSENT,
        timestamp: int | None = None,
        headers: Headers = (),
    ) -> None:
        """Write one record: a key and a value, a value alone, or a `Record`."""
        if value is not _ABSENT:
            self._write(self._topic, [self._encoded(key, value, timestamp, headers)])
        elif isinstance(key, Record):
            self.pipe_record(key)
        else:
            self.pipe_value_list([key])

    def pipe_record(self, record: Record[Any, Any]) -> None:
        """Write one record with its own timestamp and headers."""
        self.pipe_input(record.key, record.value, record.timestamp, record.headers)

    def pipe_record_list(self, records: Iterable[Record[Any, Any]]) -> None:
        """Write records with their own timestamps and headers."""
        encoded = [self._encoded(r.key, r.value, r.timestamp, r.headers) for r in records]
        self._write(self._topic, encoded)

    def pipe_key_value_list(
        self,
        pairs: Iterable[tuple[Any, Any]],
        start: int | None = None,
        advance: Duration = 0,
    ) -> None:
        """Write keys and values, at ``start`` and ``advance`` apart, or at the topic's time.

        >>> from thulawa.testing import TopologyTestDriver
        >>> from thulawa.streams import StreamsBuilder
        >>> builder = StreamsBuilder()
        >>> builder.stream("in").to("out")
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.create_input_topic("in").pipe_key_value_list(
        ...         [("a", 1), ("b", 2)], 100, "1 s"
        ...     )
        ...     [r.timestamp for r in driver.create_output_topic("out").read_records_to_list()]
        [100, 1100]
        """
        step = milliseconds(advance, name="advance")
        times = repeat(None) if start is None else count(start, step)
        encoded = [self._encoded(*pair, time, ()) for pair, time in zip(pairs, times, strict=False)]
        self._write(self._topic, encoded)

    def pipe_value_list(
        self, values: Iterable[Any], start: int | None = None, advance: Duration = 0
    ) -> None:
        """Write values without keys, at ``start`` and ``advance`` apart, or at the topic's time."""
        self.pipe_key_value_list(((None, value) for value in values), start, advance)

    def advance_time(self, duration: Duration) -> None:
        """Advance the topic's time."""
        self._time += milliseconds(duration)

    def _encoded(
        self, key: Any, value: Any, timestamp: int | None, headers: Headers
    ) -> InputRecord:
        if timestamp is None:
            timestamp = self._time
            self._time += self._auto_advance
        # Bytes are written as they are, so that a test can write invalid data.
        if key is not None and not isinstance(key, bytes):
            key = self._dumped("key", self._key_serde, key)
        if value is not None and not isinstance(value, bytes):
            value = self._dumped("value", self._value_serde, value)
        return timestamp, key, value, headers

    def _dumped(self, part: str, serde: Serde[Any], data: Any) -> bytes | None:
        try:
            return serde.dumps(data)
        except SerializationError as error:
            raise ConfigurationError(
                f"{error.args[0]}, the serde of the {part}s of {self._topic!r}: pass another one "
                f"in Consumed, or for all topics with {part}_serde=… of the driver and of Streams; "
                "or write bytes"
            ) from error


@dataclass(eq=False, repr=False)
class TestOutputTopic:
    """Read the records of a topic that have not been read yet.

    Without serdes, each record is deserialized by those that wrote it. Records that were written
    without a serde, such as dead letters, are bytes.
    """

    __test__ = False  # not a test class

    _topic: str
    _unread: Callable[[], UnreadRecords]  # processes the buffered records first
    _key_serde: Serde[Any] | None
    _value_serde: Serde[Any] | None

    def read_record(self) -> Record[Any, Any]:
        """Read the next record; raise `LookupError` if there is none."""
        unread = self._unread()
        if not unread:
            how = "all has been read" if unread.total else "nothing was written"
            raise LookupError(f"there is no record in {self._topic!r}: {how}")
        unread.read += 1
        return self._decoded(unread.popleft())

    def read_key_value(self) -> tuple[Any, Any]:
        """Read the next record; return its key and value."""
        record = self.read_record()
        return record.key, record.value

    def read_value(self) -> Any:
        """Read the next record; return its value."""
        return self.read_record().value

    def read_records_to_list(self) -> list[Record[Any, Any]]:
        """Read all records."""
        unread = self._unread()
        records = list(unread)
        unread.clear()
        unread.read += len(records)
        return [self._decoded(record) for record in records]

    def read_key_values_to_list(self) -> list[tuple[Any, Any]]:
        """Read all records; return their keys and values."""
        return [(record.key, record.value) for record in self.read_records_to_list()]

    def read_key_values_to_map(self) -> dict[Any, Any]:
        """Read all records; return the last value of each key."""
        return dict(self.read_key_values_to_list())

    def read_values_to_list(self) -> list[Any]:
        """Read all records; return their values."""
        return [record.value for record in self.read_records_to_list()]

    def read_values_by_key(self) -> dict[Any, list[Any]]:
        """Read all records; return the values of each key in order.

        The result does not depend on how records are divided into batches and partitions.
        """
        values: dict[Any, list[Any]] = {}
        for record in self.read_records_to_list():
            values.setdefault(record.key, []).append(record.value)
        return values

    def is_empty(self) -> bool:
        """Return whether all records have been read."""
        return not self._unread()

    @property
    def queue_size(self) -> int:
        """How many records have not been read."""
        return len(self._unread())

    def _decoded(self, record: WrittenRecord) -> Record[Any, Any]:
        key_serde = self._key_serde or record.key_serde
        value_serde = self._value_serde or record.value_serde
        key = record.key if key_serde is None else key_serde.loads(record.key)
        value = record.value if value_serde is None else value_serde.loads(record.value)
        return Record(key, value, record.timestamp, record.headers)
