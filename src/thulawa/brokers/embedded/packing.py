"""Check records, choose their partitions and pack them, all before the write lock is taken.

Records are checked a thousand at a time, column by column with the set of their types, which costs
a tenth of a check of each. Only where that finds something unusual is each record checked, so that
the error can say what is wrong.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from thulawa.brokers.embedded.batches import Columns, PackedBatch, pack
from thulawa.brokers.embedded.topic_table import StoredTopic
from thulawa.brokers.port import LARGEST_RECORD
from thulawa.core.partitioning import partition_of
from thulawa.core.types import Headers, ProducerRecord
from thulawa.errors import InvalidRecord, RecordTooLarge

BATCH_RECORDS = 1_000
BATCH_BYTES = 1024 * 1024
_BYTES_OR_NONE = {bytes, type(None)}
_LONGEST_HEADER_NAME = 2**16 - 1


class Fields(NamedTuple):
    """Records to be written, in columns."""

    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Sequence[Headers]
    timestamps: Sequence[int | None]

    def cut(self, start: int, end: int) -> "Fields":
        """Return the records from one position to another."""
        keys, values, headers, timestamps = self
        return Fields(keys[start:end], values[start:end], headers[start:end], timestamps[start:end])


class Partitioner:
    """Choose partitions for one writer; ``first`` is where its records without a key start.

    Those stay in one partition until their batch is full, then go to the next partition, so that
    batches are large and all partitions get records.
    """

    __slots__ = ("_turn",)

    def __init__(self, first: int) -> None:
        self._turn = first

    def choose(self, keys: Sequence[bytes | None], partitions: int) -> list[int]:
        """Return the partition of each record of a batch."""
        turn = self._turn % partitions
        homes = {key: turn if key is None else partition_of(key, partitions) for key in set(keys)}
        return [homes[key] for key in keys]

    def next_batch(self) -> None:
        """Send the keyless records that follow to the next partition."""
        self._turn += 1


def packed(
    records: Iterable[ProducerRecord], topic: StoredTopic, partitioner: Partitioner, now: int
) -> dict[int, list[PackedBatch]]:
    """Pack records for a topic, by partition; ``now`` stamps those without a timestamp."""
    rows = list(records)
    for part in _parts(rows):
        *fields, partitions = zip(*part, strict=True)
        size = _usual_size(Fields(*fields), keyed=topic.compact)
        if set(partitions) != {None} or size is None:
            for record in part:
                check_for(topic, record)
    return {
        number: [batch for part in _parts(chosen) for batch in _batches(fields_of(part), now)]
        for number, chosen in _by_partition(rows, len(topic.partitions), partitioner).items()
    }


def fields_of(rows: Iterable[ProducerRecord]) -> Fields:
    """Return records in columns, without the partitions they ask for."""
    *fields, _ = zip(*rows, strict=True)
    return Fields(*fields)


def packed_plainly(records: Fields, topic: str) -> Iterator[bytes]:
    """Pack records that have timestamps, for whichever partition of a topic."""
    for at in range(0, len(records.keys), BATCH_RECORDS):
        part = records.cut(at, at + BATCH_RECORDS)
        size = _usual_size(part, keyed=False)
        if size is None:
            for record in zip(*part, strict=True):
                check_record(ProducerRecord(*record), topic)
        if None in part.timestamps:
            raise InvalidRecord("a record has no timestamp", topic=topic)
        for piece in _pieces(part, size):
            yield _body(piece, piece.timestamps)


def check_for(topic: StoredTopic, record: ProducerRecord) -> int:
    """Return the size of a record; raise an error if this topic cannot hold it."""
    if record.partition is not None:
        topic.partition(record.partition)
    if topic.compact and record.key is None:
        raise InvalidRecord("a compacted topic needs a key in every record", topic=topic.name)
    return check_record(record, topic.name)


def check_record(record: ProducerRecord, topic: str) -> int:
    """Return the size of a record with its headers; raise an error if no topic can hold it."""
    key, value, headers, timestamp, _ = record
    if timestamp is not None and not (type(timestamp) is int and 0 <= timestamp < 2**63):
        raise InvalidRecord(f"timestamp {timestamp!r} is not an int in [0, 2**63)", topic=topic)
    header_size = _check_headers(headers, topic) if headers else 0
    size = _size(key, "key", topic) + _size(value, "value", topic)
    if size > LARGEST_RECORD:
        reason = f"key and value have {size:,} bytes, more than {LARGEST_RECORD:,}"
        raise RecordTooLarge(reason, topic=topic)
    return size + header_size


def _size(data: bytes | None, what: str, topic: str) -> int:
    if data is None:
        return 0
    # exactly bytes: a bytearray could still change between send() and flush()
    if type(data) is not bytes:
        raise InvalidRecord(f"the {what} is {type(data).__name__}, not bytes or None", topic=topic)
    return len(data)


def _check_headers(headers: Headers, topic: str) -> int:
    size = 0
    for name, value in headers:
        if type(name) is not str or len(name.encode()) > _LONGEST_HEADER_NAME:
            raise InvalidRecord("a header's name is a str of at most 65,535 bytes", topic=topic)
        size += len(name.encode()) + _size(value, f"header {name[:40]!r}", topic)
    if size > LARGEST_RECORD:
        raise RecordTooLarge(f"the headers have more than {LARGEST_RECORD:,} bytes", topic=topic)
    return size


def _parts(rows: list[ProducerRecord]) -> Iterator[list[ProducerRecord]]:
    return (rows[at : at + BATCH_RECORDS] for at in range(0, len(rows), BATCH_RECORDS))


def _usual_size(records: Fields, *, keyed: bool) -> int | None:
    """Return the size of records; None if some may be invalid, for want of a key if ``keyed``."""
    keys, values, headers, stamps = records
    times: Sequence[Any] = stamps
    kinds = set(map(type, stamps))
    if type(None) in kinds:
        kinds.remove(type(None))
        times = [time for time in stamps if time is not None]
    if (
        set(map(type, keys)) <= _BYTES_OR_NONE
        and set(map(type, values)) <= _BYTES_OR_NONE
        and not any(headers)
        and kinds <= {int}
        and min(times, default=0) >= 0
        and max(times, default=0) < 2**63
        and not (keyed and None in keys)
    ):
        size = size_of(records)
        return size if size <= LARGEST_RECORD else None
    return None


def size_of(records: "Fields | Columns") -> int:
    """Return how many bytes keys, values and headers have."""
    size = sum(map(len, filter(None, chain(records.keys, records.values))))
    if any(records.headers):
        pairs = chain.from_iterable(records.headers)
        size += sum(len(name.encode()) + len(value or b"") for name, value in pairs)
    return size


def _by_partition(
    rows: list[ProducerRecord], partitions: int, partitioner: Partitioner
) -> dict[int, list[ProducerRecord]]:
    if partitions == 1:
        return {0: rows} if rows else {}
    chosen: dict[int, list[ProducerRecord]] = defaultdict(list)
    numbers = partitioner.choose([record[0] for record in rows], partitions)
    for record, number in zip(rows, numbers, strict=True):
        asked = record[4]
        chosen[number if asked is None else asked].append(record)
    return chosen


def _batches(records: Fields, now: int) -> Iterator[PackedBatch]:
    """Pack records as one batch, or as several if it would be too large."""
    for piece in _pieces(records):
        times = [now if stamp is None else stamp for stamp in piece.timestamps]
        yield PackedBatch(len(times), max(times), _body(piece, times))


def _pieces(records: Fields, size: int | None = None) -> Iterator[Fields]:
    """Cut records until each piece fits into a batch."""
    count = len(records.keys)
    if size is None:
        size = size_of(records)
    if count > 1 and size > BATCH_BYTES:
        middle = count // 2
        yield from _pieces(records.cut(0, middle))
        yield from _pieces(records.cut(middle, count))
    else:
        yield records


def _body(records: Fields, times: Sequence[Any]) -> bytes:
    keys, values, headers, _ = records
    return pack(Columns(range(len(keys)), times, keys, values, headers))
