"""The log: topics, records, transactions and consumer groups in a folder."""

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, fields
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Self

from thulawa.brokers.embedded import cleaning, schema, topic_table, writing
from thulawa.brokers.embedded.batches import Columns, pack
from thulawa.brokers.embedded.consumer import Consumer, Start
from thulawa.brokers.embedded.database import Database
from thulawa.brokers.embedded.fetching import (
    bounds,
    fetch,
    fetch_packed,
    open_batch,
    records_of,
)
from thulawa.brokers.embedded.packing import Partitioner
from thulawa.brokers.embedded.producer import Producer
from thulawa.brokers.embedded.topic_options import (
    Appended,
    Cleaned,
    Marker,
    Retention,
    TopicDescription,
    check_marker,
)
from thulawa.brokers.embedded.topic_table import StoredTopic
from thulawa.core.markers import LastBatch, is_written
from thulawa.core.secrets import masked_address
from thulawa.core.types import ConsumerRecord, Offsets, ProducerRecord
from thulawa.errors import BrokerError, ConfigurationError
from thulawa.priority.buckets import Buckets

_logger = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class Log:
    """A log of topics in a folder of this machine, at an address like ``file:./topics``.

    Any number of processes may read and write it at once. ``timeout`` is how many seconds a
    writer waits for its turn; ``sync`` makes every write wait for the disk; ``auto_clean`` lets
    writers clean topics that have grown enough. A log may be pickled: what comes out opens the
    same folder. Threads may share one.
    """

    address: str  # with the whole path, once created
    _: KW_ONLY
    timeout: float = 30.0
    sync: bool = False
    auto_clean: bool = True
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._folder = _folder(self.address)
        self.address = f"file:{self._folder}"
        self._database = self.connect()
        self._partitioner = Partitioner(os.getpid())

    def __repr__(self) -> str:
        return f"Log({self.address!r})"

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        retention: Retention | None = None,
        compact: bool = False,
    ) -> TopicDescription:
        """Create a topic, and the log if need be; do nothing if it exists with these settings."""
        if not self._exists():
            schema.create(self._folder)
        topic_table.create(
            self._database, name, partitions, retention or Retention(), compact=compact
        )
        return self.describe(name)

    def topics(self) -> list[str]:
        """Return the names of the topics, sorted."""
        if not self._exists():
            return []
        with self._database.snapshot() as sql:
            return topic_table.names(sql)

    def describe(self, topic: str) -> TopicDescription:
        """Return a topic's settings, offsets and size."""
        with self._database.snapshot() as sql:
            return topic_table.describe(sql, topic)

    def topic(self, topic: str) -> StoredTopic:
        """Return a topic's settings; one that is deleted and created again has another id."""
        with self._database.snapshot() as sql:
            return topic_table.find(sql, topic)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, its records and its groups' positions."""
        topic_table.delete(self._database, topic)

    def producer(self, *, batch_records: int = 10_000, buckets: Buckets | None = None) -> Producer:
        """Create a producer; with ``buckets`` records go to the partitions of their bucket."""
        return Producer(self, batch_records=batch_records, buckets=buckets)

    def consumer(
        self,
        topic: str,
        *,
        group: str | None = None,
        partitions: Iterable[int] | None = None,
        start: Start = "earliest",
        buckets: Buckets | None = None,
    ) -> Consumer:
        """Create a consumer of a topic, or of some of its partitions.

        ``start`` is where to begin in a partition of which ``group`` has committed nothing. With
        ``buckets`` records that were placed by another layout are rejected.
        """
        return Consumer(
            self.connect(),
            topic,
            group=group,
            partitions=partitions,
            start=start,
            buckets=buckets,
        )

    def append(
        self,
        records: Mapping[str, Iterable[ProducerRecord]],
        *,
        marker: tuple[str, int] | None = None,
        batch: int | None = None,
        layout: str = "",
        epoch: int | None = None,
    ) -> Appended:
        """Write records to topics in one transaction: all of them, or none.

        With a ``marker`` (writer, task index) a batch is written exactly once: its number is
        stored in the same transaction. A writer that was interrupted sends its last batch again,
        which is skipped if its number is that of the marker. A lower number raises `StateError`,
        and so does the same number with another ``layout``, which names how the writer spreads
        its records over tasks (empty: unknown, and not compared). With the ``epoch`` of
        `begin_transaction`, raise `Fenced` if a later one has begun.
        """
        checked = check_marker(marker, batch)
        work = writing.pack_records(self._database, records, self._partitioner, self._now())
        return self._write(work, checked, LastBatch(batch or 0, layout), epoch)

    def commit_stream(
        self,
        records: Mapping[str, Iterable[ProducerRecord]],
        group: str,
        offsets: Offsets,
        *,
        writer: tuple[str, int] | None = None,
        epoch: int | None = None,
    ) -> None:
        """Write records and the offsets of a consumer group in one transaction.

        With the ``epoch`` of a ``writer``, raise `Fenced` if a later one has begun.
        """
        marker = None if writer is None else check_marker(writer, 0)
        work = writing.pack_records(self._database, records, self._partitioner, self._now())
        self._write(work, marker, None, epoch, (group, offsets))

    def append_packed(
        self,
        batches: Iterable[tuple[str, int | None, bytes]],
        *,
        marker: tuple[str, int],
        batch: int,
        layout: str = "",
    ) -> Appended:
        """Write packed batches, as `append` does: each with its topic and its partition.

        Where the partition is None, the keys of the records decide.
        """
        checked = check_marker(marker, batch)
        work = writing.sort_packed(self._database, batches, self._partitioner, self._now())
        return self._write(work, checked, LastBatch(batch, layout))

    def begin_transaction(self, marker: tuple[str, int]) -> int:
        """Fence earlier transactions of a marker; return the epoch of the one that begins."""
        checked = check_marker(marker, 0)
        assert checked is not None
        return writing.next_epoch(self._database, checked)

    def is_written(self, marker: tuple[str, int], batch: LastBatch) -> bool:
        """Return whether a marker holds this batch; raise `OlderBatch` if it holds a later one."""
        writer, task = marker
        last = self.markers(writer).get(task)
        return is_written(batch.number, last, writer=writer, task=task, layout=batch.layout)

    def last_batch(self, marker: tuple[str, int]) -> int | None:
        """Return the number of the last batch that was written under a marker."""
        return self.last_batches(marker[0]).get(marker[1])

    def last_batches(self, writer: str) -> dict[int, int]:
        """Return the number of the last batch of each task of a writer, of those that have any."""
        return {task: last.number for task, last in self.markers(writer).items()}

    def markers(self, writer: str) -> dict[int, LastBatch]:
        """Return the last batch and the layout of each task of a writer."""
        if not self._exists():
            return {}
        with self._database.snapshot() as sql:
            return writing.last_batches(sql, writer)

    def forget(self, marker: tuple[str, int]) -> None:
        """Delete a marker whose writer will not come back; its next batch may have any number."""
        writing.delete_marker(self._database, marker)

    def committed(self, group: str) -> Offsets:
        """Return the offsets that a group has committed, by topic and partition."""
        found: Offsets = {}
        if self._exists():
            with self._database.snapshot() as sql:
                for topic, partition, offset in sql.execute(
                    "SELECT name, partition, next_offset FROM commits"
                    " JOIN topics ON topics.id = commits.topic WHERE consumer_group = ?",
                    (group,),
                ):
                    found.setdefault(topic, {})[partition] = offset
        return found

    def forget_group(self, group: str) -> None:
        """Delete the offsets that a group has committed."""
        if self._exists():
            with self._database.transaction() as sql:
                sql.execute("DELETE FROM commits WHERE consumer_group = ?", (group,))

    def start_offsets(self, topic: str) -> dict[int, int]:
        """Return, for each partition, the lowest offset that retention has left."""
        return self._offsets(topic, "start_offset")

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Return, for each partition, the offset that its next record will have."""
        return self._offsets(topic, "end_offset")

    def read(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int | None = None,
        *,
        limit: int | None = None,
    ) -> Iterator[ConsumerRecord]:
        """Return the records of a partition with offsets in [start, end), at most ``limit``."""
        chunks = self.read_columns(topic, partition, start, end)
        records = (one for chunk in chunks for one in records_of(chunk, topic, partition))
        return islice(records, limit)

    def read_columns(
        self, topic: str, partition: int, start: int, end: int | None = None
    ) -> Iterator[Columns]:
        """Yield the same records in chunks of columns, up to a thousand at a time: faster.

        Without ``end``, up to the end of the partition now.
        """
        with self._database.snapshot() as sql:
            found = topic_table.find(sql, topic)
            end = bounds(sql, found, partition)[1] if end is None else end
        while True:
            chunks, start = fetch(self._database, found, partition, start, end)
            yield from chunks
            if start >= end:
                return

    def read_packed(
        self, topic: str, partition: int, start: int, end: int
    ) -> Iterator[tuple[int, bytes]]:
        """Yield the same records as packed batches, each with its first offset: the fastest.

        `unpack` opens one, and finds damage. Records beyond the bounds are cut off.
        """
        found = self.topic(topic)
        while start < end:
            batches, _, following = fetch_packed(self._database, found, partition, start, end)
            for first, last, body in batches:
                if start <= first and last < end:
                    yield first, body
                elif len(cut := open_batch(first, body, found, partition).between(start, end)):
                    yield cut.offsets[0], pack(cut)
            start = following

    def delete_records(self, topic: str, before: Mapping[int, int]) -> Cleaned:
        """Delete the records of some partitions that have lower offsets than these.

        Readers see none of them from now on. Disk space comes back by whole stored batches.
        """
        return cleaning.delete_records(self._database, topic, before)

    def clean(self, topic: str) -> Cleaned:
        """Apply retention and compaction now."""
        return cleaning.clean(self._database, topic, self._now)

    def close(self) -> None:
        """Close the files; they open again when the log is used again."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:  # a connection cannot be pickled
        return partial(Log, **{one.name: getattr(self, one.name) for one in fields(self)}), ()

    def connect(self) -> Database:
        """Return another connection to the log."""
        return Database(self._folder, timeout=self.timeout, sync=self.sync)

    def _now(self) -> int:
        return int(self.clock() * 1000)

    def _exists(self) -> bool:
        return schema.current(self._folder) is not None

    def _offsets(self, topic: str, column: str) -> dict[int, int]:
        with self._database.snapshot() as sql:
            rows = sql.execute(
                f"SELECT number, {column} FROM partitions WHERE topic = ? ORDER BY number",  # noqa: S608 - a column of ours
                (topic_table.find(sql, topic).id,),
            )
            return dict(rows.fetchall())

    def _write(
        self,
        work: writing.Work,
        marker: Marker | None,
        batch: LastBatch | None,
        epoch: int | None = None,
        commits: tuple[str, Offsets] | None = None,
    ) -> Appended:
        self._partitioner.next_batch()
        appended, due = writing.write(self._database, work, marker, batch, epoch, commits)
        for topic in due if self.auto_clean else ():
            # the records are written: an error now would make their writer send them again
            try:
                cleaning.clean(self._database, topic, self._now, wait=False)
            except (BrokerError, OSError) as error:
                _logger.warning("topic %s was not cleaned: %s", topic, error)
        return appended


def _folder(address: str) -> Path:
    scheme, colon, path = address.partition(":")
    if scheme != "file" or not colon or not path.strip("/"):
        shown = masked_address(address)
        raise ConfigurationError(f"{shown!r} is no address of a log: write 'file:./topics'")
    if path.startswith("//"):
        path = "/" + path.lstrip("/")
    # absolute: workers and later calls may run in another folder
    return Path(path).absolute()
