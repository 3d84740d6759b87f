"""Continuous readers and writers of the embedded log."""

from collections.abc import Collection, Mapping, Sequence

from thulawa.brokers.embedded.batches import Columns
from thulawa.brokers.embedded.consumer import Waiter
from thulawa.brokers.embedded.fetching import bounds, fetch
from thulawa.brokers.embedded.log import Log
from thulawa.brokers.port import PolledRecords
from thulawa.core.types import Headers, Offsets, ProducerRecord, TopicPartition

_FLUSH_RECORDS = 10_000  # of a producer without transactions


class EmbeddedStreamConsumer:
    """Reads partitions of an embedded log, in turn."""

    def __init__(self, log: Log, positions: Mapping[TopicPartition, int]) -> None:
        self._database = log.connect()
        self._waiter = Waiter(self._database)
        self._positions = dict(positions)
        self._topics = {topic: log.topic(topic) for topic, _ in positions}
        self._order = list(positions)
        self._paused: set[TopicPartition] = set()
        self._at_end: set[TopicPartition] = set()

    def poll(self, max_records: int, timeout: float) -> list[PolledRecords]:
        """Return records as soon as there are any; an empty list after ``timeout`` seconds."""
        deadline = self._waiter.deadline(timeout)
        while True:
            version = self._database.version()
            polled = self._fetch(max_records)
            if polled or not self._waiter.wait(version, deadline):
                return polled

    def _fetch(self, max_records: int) -> list[PolledRecords]:
        polled: list[PolledRecords] = []
        self._order.append(self._order.pop(0))  # a long partition must not starve the others
        with self._database.snapshot() as sql:
            ends = {place: bounds(sql, self._topics[place.topic], place.partition)[1]
                    for place in self._order if place not in self._paused}  # fmt: skip
        for place, end in ends.items():
            start = self._positions[place]
            if start >= end:
                if place not in self._at_end:
                    self._at_end.add(place)
                    polled.append(PolledRecords(place, (), (), (), (), (), start, at_end=True))
                continue
            if max_records <= 0:
                continue
            self._at_end.discard(place)
            last = min(end, start + max_records)
            found = fetch(
                self._database, self._topics[place.topic], place.partition, start, end=last
            )
            self._positions[place] = found.next
            max_records -= sum(map(len, found.chunks))
            polled += [_polled(place, chunk) for chunk in found.chunks]
            if not found.chunks or found.chunks[-1].offsets[-1] + 1 < found.next:
                polled.append(PolledRecords(place, (), (), (), (), (), found.next, at_end=False))
        return polled

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Return no records of these partitions until they are resumed."""
        self._paused.update(partitions)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Return records of these partitions again."""
        self._paused.difference_update(partitions)

    def close(self) -> None:
        """Close the connection."""
        self._database.close()


class EmbeddedStreamProducer:
    """Buffers records until they are committed or, without transactions, dispatched."""

    def __init__(self, log: Log, transactional_id: str | None) -> None:
        self._log = log
        self._writer = None if transactional_id is None else (f"stream/{transactional_id}", 0)
        self._epoch = None if self._writer is None else log.begin_transaction(self._writer)
        self._records: dict[str, list[ProducerRecord]] = {}
        self._count = 0

    def send(
        self,
        topic: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers = (),
    ) -> None:
        """Buffer a record."""
        self._add(topic, [ProducerRecord(key, value, headers, timestamp, partition)])

    def send_columns(
        self,
        topic: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps: Sequence[int],
        headers: Sequence[Headers],
    ) -> None:
        """Buffer many records."""
        self._add(topic, list(map(ProducerRecord, keys, values, headers, timestamps)))

    def _add(self, topic: str, records: list[ProducerRecord]) -> None:
        self._records.setdefault(topic, []).extend(records)
        self._count += len(records)
        if self._writer is None and self._count >= _FLUSH_RECORDS:
            self.dispatch()

    def dispatch(self) -> None:
        """Write the buffered records, if there are no transactions."""
        if self._writer is None and self._records:
            records, self._records, self._count = self._records, {}, 0
            self._log.append(records)

    def commit(
        self,
        group: str,
        offsets: Offsets,
        last: tuple[str, Sequence[ProducerRecord]] | None = None,
    ) -> None:
        """Write the buffered records and the offsets of a group in one transaction."""
        if last is not None:
            self._records.setdefault(last[0], []).extend(last[1])
        records, self._records, self._count = self._records, {}, 0
        self._log.commit_stream(records, group, offsets, writer=self._writer, epoch=self._epoch)

    @property
    def pending(self) -> bool:
        """Whether records are buffered."""
        return bool(self._records)

    def close(self) -> None:
        """Discard what is not committed."""
        self._records = {}


def _polled(place: TopicPartition, chunk: Columns) -> PolledRecords:
    return PolledRecords(
        place,
        chunk.offsets,
        chunk.timestamps,
        chunk.keys,
        chunk.values,
        chunk.headers,
        chunk.offsets[-1] + 1,
        at_end=False,
    )
