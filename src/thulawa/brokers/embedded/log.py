"""The log as its users see it."""

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from thulawa.brokers.embedded import cleaning, consumer, fetching, schema, topic_table, writing
from thulawa.brokers.embedded.batches import Columns
from thulawa.brokers.embedded.consumer import Consumer, Start
from thulawa.brokers.embedded.database import Database
from thulawa.brokers.embedded.packing import Partitioner
from thulawa.brokers.embedded.producer import Producer
from thulawa.brokers.embedded.topic_options import (
    Appended,
    Cleaned,
    Retention,
    TopicDescription,
    check_marker,
)
from thulawa.brokers.embedded.topic_table import StoredTopic
from thulawa.core.markers import LastBatch, is_written
from thulawa.core.secrets import masked_address
from thulawa.core.types import (
    ConsumerRecord,
    Offsets,
    ProducerRecord,
)
from thulawa.errors import BrokerError, ConfigurationError
from thulawa.priority.buckets import Buckets

__all__ = ["Log"]

_logger = logging.getLogger(__name__)


class Log:
    """A log of topics in a folder of this machine, at an address like ``file:./topics``.

    Any number of processes may read and write it at once. ``timeout`` is how many seconds a
    writer waits for its turn; ``sync`` makes every write wait for the disk; ``auto_clean`` lets
    writers clean topics that have grown enough. A log may be pickled: what comes out opens the
    same folder. Threads may share one.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout: float = 30.0,
        sync: bool = False,
        auto_clean: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder = _folder(address)
        self._timeout = timeout
        self._sync = sync
        self._auto_clean = auto_clean
        self._clock = clock
        self._database = self.connect()
        self._partitioner = Partitioner(os.getpid())

    def __repr__(self) -> str:
        return f"Log({self.address!r})"

    @property
    def address(self) -> str:
        """Give the address, with the whole path."""
        return f"file:{self._folder}"

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        retention: Retention | None = None,
        compact: bool = False,
    ) -> TopicDescription:
        """Make a topic, and the log if need be; a topic with these settings is left as it is."""
        if schema.current(self._folder) is None:
            schema.create(self._folder)
        topic_table.create(
            self._database, name, partitions, retention or Retention(), compact=compact
        )
        return self.describe(name)

    def topics(self) -> list[str]:
        """Name the topics, sorted."""
        if schema.current(self._folder) is None:
            return []
        with self._database.snapshot() as sql:
            return topic_table.names(sql)

    def describe(self, topic: str) -> TopicDescription:
        """Tell a topic's settings, offsets and size."""
        with self._database.snapshot() as sql:
            return topic_table.describe(sql, topic)

    def topic(self, topic: str) -> StoredTopic:
        """Return a topic's settings; one that is deleted and created again has another id."""
        with self._database.snapshot() as sql:
            return topic_table.find(sql, topic)

    def delete_topic(self, topic: str) -> None:
        """Remove a topic, its records and its groups' positions."""
        topic_table.delete(self._database, topic)

    def producer(self, *, batch_records: int = 10_000, buckets: Buckets | None = None) -> Producer:
        """Make a producer; with ``buckets`` it puts records where those say."""
        return Producer(self, self.topic, batch_records=batch_records, buckets=buckets)

    def consumer(
        self,
        topic: str,
        *,
        group: str | None = None,
        partitions: Iterable[int] | None = None,
        start: Start = "earliest",
        buckets: Buckets | None = None,
    ) -> Consumer:
        """Make a consumer of a topic, or of some of its partitions.

        ``start`` says where to begin in a partition of which ``group`` has committed nothing.
        With ``buckets`` records that were placed by another layout are refused.
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
        written = writing.append(
            self._database,
            records,
            partitioner=self._partitioner,
            now=self._now(),
            marker=checked,
            batch=LastBatch(batch or 0, layout),
            epoch=epoch,
        )
        return self._cleaned(written)

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
        written = writing.commit_stream(
            self._database,
            records,
            (group, offsets),
            partitioner=self._partitioner,
            now=self._now(),
            writer=None if marker is None or epoch is None else (marker, epoch),
        )
        self._cleaned(written)

    def append_packed(
        self,
        batches: Iterable[tuple[str, int | None, bytes]],
        *,
        marker: tuple[str, int],
        batch: int,
        layout: str = "",
    ) -> Appended:
        """Write batches that are packed already, as `append` does: topic, partition, batch.

        Where the partition is None, the keys of the records decide.
        """
        checked = check_marker(marker, batch)
        written = writing.append_packed(
            self._database,
            batches,
            partitioner=self._partitioner,
            now=self._now(),
            marker=checked,
            batch=LastBatch(batch, layout),
        )
        return self._cleaned(written)

    def begin_transaction(self, marker: tuple[str, int]) -> int:
        """Fence earlier transactions of a marker; return the epoch of the one that begins."""
        checked = check_marker(marker, 0)
        assert checked is not None
        return writing.begin(self._database, checked)

    def is_written(self, marker: tuple[str, int], batch: LastBatch) -> bool:
        """Return whether a marker holds this batch; raise `OlderBatch` if it holds a later one."""
        writer, task = marker
        last = self.markers(writer).get(task)
        return is_written(batch.number, last, writer=writer, task=task, layout=batch.layout)

    def last_batch(self, marker: tuple[str, int]) -> int | None:
        """Give the number of the last batch that was written under a marker."""
        writer, task = marker
        return self.last_batches(writer).get(task)

    def last_batches(self, writer: str) -> dict[int, int]:
        """Return the number of the last batch of each task of a writer, of those that have any."""
        return {task: last.number for task, last in self.markers(writer).items()}

    def markers(self, writer: str) -> dict[int, LastBatch]:
        """Return the last batch and the layout of each task of a writer."""
        if schema.current(self._folder) is None:
            return {}
        with self._database.snapshot() as sql:
            return writing.last_batches(sql, writer)

    def forget(self, marker: tuple[str, int]) -> None:
        """Forget a marker whose writer will not come back; its next batch may have any number."""
        writing.forget(self._database, marker)

    def committed(self, group: str) -> dict[str, dict[int, int]]:
        """Return the offsets that a group has committed, by topic and partition."""
        if schema.current(self._folder) is None:
            return {}
        with self._database.snapshot() as sql:
            return consumer.committed(sql, group)

    def forget_group(self, group: str) -> None:
        """Delete the offsets that a group has committed."""
        if schema.current(self._folder) is not None:
            consumer.forget_group(self._database, group)

    def start_offsets(self, topic: str) -> dict[int, int]:
        """Give, for each partition, the lowest offset that retention has left."""
        return {number: start for number, (start, _) in self._offsets(topic).items()}

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Give, for each partition, the offset that its next record will have."""
        return {number: end for number, (_, end) in self._offsets(topic).items()}

    def read(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int | None = None,
        *,
        limit: int | None = None,
    ) -> Iterator[ConsumerRecord]:
        """Give the records of a partition with offsets in [start, end), at most ``limit``."""
        return fetching.read(self._database, topic, partition, start, end, limit)

    def read_columns(
        self, topic: str, partition: int, start: int, end: int | None = None
    ) -> Iterator[Columns]:
        """Give the same records in chunks of columns, up to a thousand at a time: faster."""
        return fetching.read_columns(self._database, topic, partition, start, end)

    def read_packed(
        self, topic: str, partition: int, start: int, end: int
    ) -> Iterator[tuple[int, bytes]]:
        """Give the same records as packed batches, each with its first offset: the fastest.

        `unpack` opens one.
        """
        return fetching.read_packed(self._database, topic, partition, start, end)

    def delete_records(self, topic: str, before: Mapping[int, int]) -> Cleaned:
        """Remove the records of some partitions that have lower offsets than these.

        Readers see none of them from now on. Disk space comes back by whole stored batches.
        """
        return cleaning.delete_records(self._database, topic, before)

    def clean(self, topic: str) -> Cleaned:
        """Apply retention and compaction now."""
        return cleaning.clean(self._database, topic, self._now)

    def close(self) -> None:
        """Let go of the files; they are opened again when the log is used again."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, object]:
        return {
            "address": self.address,
            "timeout": self._timeout,
            "sync": self._sync,
            "auto_clean": self._auto_clean,
            "clock": self._clock,
        }

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__init__(**state)  # type: ignore[misc] # a connection cannot travel

    def connect(self) -> Database:
        """Return another connection to the log."""
        return Database(self._folder, timeout=self._timeout, sync=self._sync)

    def _now(self) -> int:
        return int(self._clock() * 1000)

    def _offsets(self, topic: str) -> dict[int, tuple[int, int]]:
        with self._database.snapshot() as sql:
            return fetching.offsets(sql, topic_table.find(sql, topic))

    def _cleaned(self, written: writing.AppendResult) -> Appended:
        if self._auto_clean:
            for topic in written.to_clean:
                self._try_to_clean(topic)
        return written.appended

    def _try_to_clean(self, topic: str) -> None:
        # the records are written: an error now would make their writer send them again
        try:
            cleaning.clean(self._database, topic, self._now, wait=False)
        except (BrokerError, OSError) as error:
            _logger.warning("topic %s was not cleaned: %s", topic, error)


def _folder(address: str) -> Path:
    scheme, colon, path = address.partition(":")
    if scheme != "file" or not colon or not path.strip("/"):
        shown = masked_address(address)
        raise ConfigurationError(f"{shown!r} is no address of a log: write 'file:./topics'")
    if path.startswith("//"):
        path = "/" + path.lstrip("/")
    # made absolute now: workers and later calls may run in another folder
    return Path(path).absolute()
