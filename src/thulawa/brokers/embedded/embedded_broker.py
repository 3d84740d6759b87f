"""The embedded log as a `Broker`."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from thulawa.brokers.embedded.log import Log
from thulawa.brokers.embedded.partition_leases import PartitionLeases
from thulawa.brokers.embedded.stream_clients import (
    EmbeddedStreamConsumer,
    EmbeddedStreamProducer,
)
from thulawa.brokers.embedded.topic_options import Retention
from thulawa.brokers.port import (
    LARGEST_RECORD,
    Broker,
    Committed,
    RecordColumns,
    TopicMetadata,
    TopicSize,
    WriterId,
)
from thulawa.core.markers import LastBatch
from thulawa.core.types import ConsumerRecord, Offsets, ProducerRecord, TopicPartition
from thulawa.errors import TopicDiffers


class EmbeddedBroker(Broker):
    """Topics in a folder of this machine."""

    def __init__(self, address: str) -> None:
        self.log = Log(address)

    def __repr__(self) -> str:
        return f"EmbeddedBroker({self.address!r})"

    @property
    def address(self) -> str:
        return self.log.address

    def check(self) -> None:
        """Do nothing: there is no server."""

    def topics(self) -> list[str]:
        return self.log.topics()

    def partitions(self, *topics: str) -> dict[str, int]:
        existing = set(self.log.topics())
        return {name: len(self.log.end_offsets(name)) for name in topics if name in existing}

    def topic_ids(self, *topics: str) -> dict[str, str]:
        existing = set(self.log.topics())
        return {name: str(self.log.topic(name).id) for name in topics if name in existing}

    def describe(self, topic: str) -> TopicMetadata:
        found = self.log.topic(topic)
        return TopicMetadata(
            topic, len(found.partitions), str(found.id), found.compact, LARGEST_RECORD
        )

    def max_record_size(self, topic: str) -> int:
        """Return the most bytes of a record, which are the same for every topic."""
        return self.describe(topic).max_record_bytes

    def size(self, topic: str) -> TopicSize:
        partitions = self.log.describe(topic).partitions
        return TopicSize(
            sum(one.records for one in partitions), sum(one.bytes for one in partitions)
        )

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        *,
        compact: bool = False,
        unlimited: bool = False,  # noqa: ARG002 no topic has a retention unless it is given one
        retention: float | None = None,
    ) -> None:
        if topic not in self.log.topics():
            limit = Retention(seconds=retention)
            self.log.create_topic(topic, partitions=partitions, compact=compact, retention=limit)
            return
        found = self.log.topic(topic)
        if (len(found.partitions), found.compact) != (partitions, compact):
            kind = "compacted" if found.compact else "not compacted"
            raise TopicDiffers(f"it has {len(found.partitions)} partitions, {kind}", topic=topic)

    def delete_topic(self, topic: str) -> None:
        self.log.delete_topic(topic)

    def delete_records(self, before: Offsets) -> None:
        for topic, offsets in before.items():
            self.log.delete_records(topic, offsets)

    def start_offsets(self, *topics: str) -> Offsets:
        return {topic: self.log.start_offsets(topic) for topic in topics}

    def end_offsets(self, *topics: str, committed: bool = True) -> Offsets:  # noqa: ARG002 all are
        return {topic: self.log.end_offsets(topic) for topic in topics}

    def read(
        self,
        ranges: Mapping[TopicPartition, tuple[int, int]],
        *,
        timeout: float = 30.0,  # noqa: ARG002 nothing is waited for
    ) -> Iterator[ConsumerRecord]:
        for (topic, number), (start, end) in ranges.items():
            if start < end:
                yield from self.log.read(topic, number, start, end)

    def read_columns(
        self, partition: TopicPartition, start: int, end: int
    ) -> Iterator[RecordColumns]:
        from thulawa.brokers.embedded.arrow import gathered, read_arrow  # noqa: PLC0415 heavy

        rows = read_arrow(self.log, *partition, start, end)
        for batch in gathered(rows, rows=50_000, size=32 * 1024 * 1024):
            yield RecordColumns(batch["offset"], batch["timestamp"], batch["value"])

    def append(self, topic: str, records: Sequence[ProducerRecord]) -> None:
        self.log.append({topic: records})

    def commit(self, group: str, offsets: Offsets, *, query: str = "", batch: int = -1) -> None:
        for topic, positions in offsets.items():
            with self.log.consumer(topic, group=group, partitions=positions) as consumer:
                consumer.commit(positions)
        if query:  # last: offsets of several topics that are half written have no batch
            self.log.append({}, marker=_commits_of(query), batch=batch)

    def committed(
        self, group: str, topics: Collection[str] | None = None, *, query: str = ""
    ) -> Committed:
        found = self.log.committed(group)
        batch = self.log.last_batch(_commits_of(query)) if query and found else None
        wanted = found if topics is None else topics
        return Committed({name: at for name, at in found.items() if name in wanted}, batch)

    def join_group(self, group: str, topics: Sequence[str]) -> PartitionLeases:
        """Join the processes that divide the partitions of these topics under this name."""
        # a digest: a path may not be as long as many names
        digest = sha256("/".join(sorted(topics)).encode()).hexdigest()[:16]
        folder = Path(self.address.removeprefix("file:"), "leases", group, digest)
        return PartitionLeases(folder, lambda: self._all_partitions(topics))

    def _all_partitions(self, topics: Sequence[str]) -> Iterator[TopicPartition]:
        for topic, count in self.partitions(*topics).items():
            yield from (TopicPartition(topic, number) for number in range(count))

    def delete_groups(self, *groups: str) -> None:
        for group in groups:
            self.log.forget_group(group)

    @contextmanager
    def transaction(
        self, writer: WriterId, task: int, batch: LastBatch
    ) -> Iterator["_BufferedTransaction"]:
        marker = (_key(writer), task)
        epoch = self.log.begin_transaction(marker)
        transaction = _BufferedTransaction(skipped=self.log.is_written(marker, batch))
        yield transaction
        if not transaction.skipped:
            appended = self.log.append(
                transaction.records,
                marker=marker,
                batch=batch.number,
                layout=batch.layout,
                epoch=epoch,
            )
            transaction.skipped = appended.skipped

    def markers(
        self,
        writer: WriterId,
        tasks: Collection[int] | None = None,
        *,
        timeout: float | None = None,  # noqa: ARG002 nothing is waited for
    ) -> dict[int, LastBatch]:
        found = self.log.markers(_key(writer))
        return {task: last for task, last in found.items() if tasks is None or task in tasks}

    def fence(self, writer: WriterId, tasks: Collection[int] | None = None) -> None:
        for task in self.markers(writer) if tasks is None else tasks:
            self.log.begin_transaction((_key(writer), task))

    def delete_writer(self, writer: WriterId) -> None:
        for task in self.markers(writer):
            self.log.forget((_key(writer), task))

    def stream_consumer(self, positions: Mapping[TopicPartition, int]) -> EmbeddedStreamConsumer:
        return EmbeddedStreamConsumer(self.log, positions)

    def stream_producer(
        self,
        transactional_id: str | None,
        *,
        timeout: float = 60.0,  # noqa: ARG002 no transaction stays open
    ) -> EmbeddedStreamProducer:
        return EmbeddedStreamProducer(self.log, transactional_id)

    def close(self) -> None:
        self.log.close()


@dataclass
class _BufferedTransaction:
    """Records that wait for their commit: the log's lock is held for that alone."""

    skipped: bool
    records: dict[str, list[ProducerRecord]] = field(default_factory=dict)

    def write(self, topic: str, records: Iterable[ProducerRecord]) -> None:
        self.records.setdefault(topic, []).extend(records)


def _key(writer: WriterId) -> str:
    return writer.log_key or writer.query


def _commits_of(query: str) -> tuple[str, int]:
    """Return the marker that says after which batch of a query offsets were committed."""
    return f"{query}/committed", 0
