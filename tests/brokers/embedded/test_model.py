"""The log against a model of it in plain Python, under any order of operations."""

import tempfile
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.brokers.embedded.helpers import Clock
from thulawa.brokers.embedded import Consumer, Log, ProducerRecord, Retention, partition_of
from thulawa.errors import StateError, UnknownTopic

TOPICS = st.sampled_from(["a", "b", "table"])
PARTITIONS = 2
TOMBSTONES = 10
KEYS = st.sampled_from([b"k%d" % n for n in range(6)])
VALUES = st.none() | st.binary(max_size=4)
RECORDS = st.lists(
    st.builds(
        ProducerRecord,
        key=KEYS,
        value=VALUES,
        headers=st.sampled_from([(), (("h", b"1"),)]),
        timestamp=st.none() | st.integers(0, 2**40),
        partition=st.none() | st.integers(0, PARTITIONS - 1),
    ),
    max_size=6,
)


@dataclass
class Partition:
    """What a partition holds: offset, timestamp, key, value and headers of each record."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)
    end: int = 0
    compactions: list[tuple[int, float]] = field(default_factory=list)

    def append(self, record: ProducerRecord, now: int) -> None:
        stamp = now if record.timestamp is None else record.timestamp
        self.rows.append((self.end, stamp, record.key, record.value, record.headers))
        self.end += 1

    def compact(self, now: float) -> None:
        last = {key: offset for offset, _, key, _, _ in self.rows}
        settled = max((end for end, at in self.compactions if at <= now - TOMBSTONES), default=0)
        self.rows = [
            row
            for row in self.rows
            if last[row[2]] == row[0] and not (row[3] is None and row[0] < settled)
        ]
        self.compactions.append((self.end, now))


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = Clock()
        self.log = self.opened()
        self.model: dict[str, list[Partition]] = {}
        self.markers: dict[tuple[str, int], int] = {}
        self.committed: dict[str, dict[int, int]] = {}
        self.consumers: dict[str, Consumer] = {}

    def opened(self) -> Log:
        return Log(f"file:{self.folder.name}/topics", clock=self.clock, auto_clean=False)

    def teardown(self) -> None:
        self.log.close()
        for consumer in self.consumers.values():
            consumer.close()
        self.folder.cleanup()

    @rule(topic=TOPICS)
    def create(self, topic: str) -> None:
        self.log.create_topic(
            topic,
            partitions=PARTITIONS,
            compact=topic == "table",
            retention=Retention(tombstones=TOMBSTONES),
        )
        self.model.setdefault(topic, [Partition() for _ in range(PARTITIONS)])

    @rule(topic=TOPICS)
    def delete(self, topic: str) -> None:
        if topic not in self.model:
            with pytest.raises(UnknownTopic):
                self.log.delete_topic(topic)
            return
        self.log.delete_topic(topic)
        del self.model[topic]
        self.committed.pop(topic, None)
        if topic in self.consumers:
            self.consumers.pop(topic).close()

    @rule(topic=TOPICS, records=RECORDS)
    def produce(self, topic: str, records: list[ProducerRecord]) -> None:
        if topic not in self.model:
            return
        with self.log.producer() as producer:
            for record in records:
                producer.send(topic, **record._asdict())
        self.note(topic, records)

    @rule(
        parts=st.dictionaries(TOPICS, RECORDS, max_size=3),
        marker=st.tuples(st.sampled_from(["w", "w/x"]), st.integers(0, 1)),
        batch=st.integers(0, 6),
    )
    def append_batch(
        self, parts: dict[str, list[ProducerRecord]], marker: tuple[str, int], batch: int
    ) -> None:
        if not self.model or not set(parts) <= set(self.model):
            return
        last = self.markers.get(marker, -1)
        if batch < last:
            with pytest.raises(StateError):
                self.log.append(parts, marker=marker, batch=batch)
            return
        appended = self.log.append(parts, marker=marker, batch=batch)
        assert appended.skipped == (batch == last)
        if not appended.skipped:
            self.markers[marker] = batch
            for topic, records in parts.items():
                self.note(topic, records)

    def note(self, topic: str, records: list[ProducerRecord]) -> None:
        for record in records:
            number = record.partition
            if number is None:
                assert record.key is not None
                number = partition_of(record.key, PARTITIONS)
            self.model[topic][number].append(record, int(self.clock.seconds * 1000))

    @precondition(lambda self: "table" in self.model)
    @rule()
    def clean(self) -> None:
        before = sum(len(partition.rows) for partition in self.model["table"])
        for partition in self.model["table"]:
            partition.compact(self.clock.seconds)
        after = sum(len(partition.rows) for partition in self.model["table"])
        assert self.log.clean("table").records == before - after

    @rule(seconds=st.integers(1, 2 * TOMBSTONES))
    def wait(self, seconds: int) -> None:
        self.clock.seconds += seconds

    @rule()
    def reopen(self) -> None:
        self.log.close()
        self.log = self.opened()

    @rule(topic=TOPICS, most=st.integers(1, 10), commit=st.booleans())
    def poll(self, topic: str, most: int, commit: bool) -> None:  # noqa: FBT001 - drawn
        if topic not in self.model:
            return
        if topic not in self.consumers:
            self.consumers[topic] = self.log.consumer(topic, group="g")
            expected = {n: self.committed.get(topic, {}).get(n, 0) for n in range(PARTITIONS)}
            assert self.consumers[topic].positions() == expected
        consumer = self.consumers[topic]
        before = consumer.positions()
        # a partition with records that were fetched earlier is not fetched in the same poll
        least = 1 if any(consumer._fetched.values()) else most
        records = consumer.poll(most)
        self.check_polled(topic, before, [tuple(record) for record in records], least)
        assert len(records) <= most
        if commit:
            consumer.commit()
            self.committed[topic] = consumer.positions()

    def check_polled(
        self, topic: str, before: dict[int, int], polled: list[tuple[Any, ...]], least: int
    ) -> None:
        positions = self.consumers[topic].positions()
        waiting = 0
        for number, partition in enumerate(self.model[topic]):
            got = [row[2:] for row in polled if row[1] == number]
            assert all(before[number] <= row[0] < positions[number] for row in got)
            # fetched ahead, a consumer may still hold what a compaction has removed since
            must = [r for r in partition.rows if before[number] <= r[0] < positions[number]]
            assert [row for row in got if row in must] == must
            waiting += sum(row[0] >= before[number] for row in partition.rows)
        assert len(polled) >= min(least, waiting)

    @rule(topic=TOPICS)
    def restart_consumer(self, topic: str) -> None:
        if topic in self.consumers:
            self.consumers.pop(topic).close()

    @invariant()
    def the_log_holds_what_the_model_holds(self) -> None:
        assert self.log.topics() == sorted(self.model)
        for topic, partitions in self.model.items():
            ends = {number: partition.end for number, partition in enumerate(partitions)}
            assert self.log.end_offsets(topic) == ends
            for number, partition in enumerate(partitions):
                rows = [tuple(record[2:]) for record in self.log.read(topic, number, 0)]
                assert rows == partition.rows


class TestLog(LogMachine.TestCase):  # type: ignore[misc, valid-type] # made by hypothesis
    settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
