"""Whatever instances do to each other, the topic has the exact counts at the end.

Instances are run step by step, in any order, without Spark: they restore, count some messages,
write what they counted (perhaps long after others have written), are killed between any two steps,
and start again. All share one topic of the embedded log.
"""

import tempfile
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.health.helpers import counted, model, written
from thulawa.brokers.embedded import Log, ProducerRecord
from thulawa.brokers.port import open_broker
from thulawa.core.types import TopicPartition
from thulawa.health.changelog import CountsChangelog, restore
from thulawa.health.counter import Rule, Totals
from thulawa.health.counts import Cell, Count
from thulawa.health.tasks import Range

WINDOW, EXPIRE, PARTITIONS, INSTANCES = 10, 50, 2, 3
RULE = Rule(lambda value: (value or b"").decode(), WINDOW, EXPIRE)
PLACES = [TopicPartition("tx", number) for number in range(PARTITIONS)]
instances = st.integers(0, INSTANCES - 1)
partitions = st.integers(0, PARTITIONS - 1)
messages = st.tuples(partitions, st.integers(0, 300), st.sampled_from(["valid", "invalid"]))


class Instance:
    """One that counts: what it knows of each partition, and what it has yet to write."""

    def __init__(self) -> None:
        self.totals: dict[TopicPartition, Totals] = {}
        self.waiting: dict[TopicPartition, tuple[list[Count], int]] = {}


class Counting(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.log = Log(f"file:{self.folder.name}/topics")
        self.log.create_topic("tx", partitions=PARTITIONS)
        self.changelog = CountsChangelog(open_broker(self.log.address), "metrics", "health")
        self.changelog.prepare(["tx"])
        self.instances = [Instance() for _ in range(INSTANCES)]
        self.messages: list[tuple[int, int, str]] = []

    @rule(came=st.lists(messages, min_size=1, max_size=20))
    def messages_come(self, came: list[tuple[int, int, str]]) -> None:
        records = [ProducerRecord(None, s.encode(), (), time, p) for p, time, s in came]
        self.log.append({"tx": records})
        self.messages += came

    @rule(which=instances, place=st.sampled_from(PLACES), most=st.integers(1, 15))
    def an_instance_counts(self, which: int, place: TopicPartition, most: int) -> None:
        one = self.instances[which]
        if place in one.waiting:
            return  # a round ends before the next one begins
        if place not in one.totals:
            one.totals[place] = restore(self.changelog, [place], EXPIRE)[place].totals
        totals = one.totals[place]
        end = min(self.log.end_offsets("tx")[place.partition], totals.position + most)
        if end > totals.position:
            found = counted(self.log, [Range(place, totals.since, end)], RULE)
            one.waiting[place] = totals.add(found.get(place, ()), position=end), end

    @rule(which=instances, place=st.sampled_from(PLACES))
    def an_instance_writes(self, which: int, place: TopicPartition) -> None:
        one = self.instances[which]
        if place not in one.waiting:
            return
        changes, end = one.waiting.pop(place)
        if not self.changelog.write({place: changes}, 0, {place: end}) and changes:
            del one.totals[place]

    @rule(which=instances)
    def an_instance_is_killed(self, which: int) -> None:
        self.instances[which] = Instance()

    @rule()
    def the_topic_is_compacted(self) -> None:
        self.log.clean("metrics")

    @invariant()
    def the_topic_is_exact_up_to_its_offsets(self) -> None:
        assert self._in_topic() == self._expected(self._positions())

    def teardown(self) -> None:
        if not hasattr(self, "log"):
            return
        for place in PLACES:  # one instance is left, and comes to the end
            self.instances[0] = Instance()
            while self._positions()[place.partition] < self._last_counted(place.partition):
                self.an_instance_counts(0, place, 1_000)
                self.an_instance_writes(0, place)
        everything = dict.fromkeys(range(PARTITIONS), len(self.messages))
        assert self._in_topic() == self._expected(everything)
        self.log.close()
        self.changelog._broker.close()
        self.folder.cleanup()

    def _positions(self) -> dict[int, int]:
        restored = restore(self.changelog, PLACES, EXPIRE)
        return {place.partition: one.totals.position for place, one in restored.items()}

    def _in_topic(self) -> dict[Cell, int | None]:
        restored = restore(self.changelog, PLACES, EXPIRE)
        return {
            count.cell: count.value for one in restored.values() for count in one.totals.counts()
        }

    def _expected(self, positions: dict[int, int]) -> dict[Cell, int]:
        left = dict(positions)
        seen = []
        for message in self.messages:
            left[message[0]] -= 1
            if left[message[0]] >= 0:
                seen.append(message)
        return model(seen, WINDOW, EXPIRE)

    def _last_counted(self, partition: int) -> int:
        """Return the offset after the last message of a partition that was not late."""
        newest, last = -1, 0
        own = [time // WINDOW * WINDOW for p, time, _ in self.messages if p == partition]
        for offset, window in enumerate(own):
            newest = max(newest, window)
            last = offset + 1 if newest - window <= EXPIRE else last
        return last


Counting.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestAnyInstancesInAnyOrder = Counting.TestCase


def test_records_of_other_partitions_are_skipped(tmp_path: Path) -> None:
    changelog = CountsChangelog(open_broker(f"file:{tmp_path}/topics"), "metrics", "health")
    changelog._broker.create_topic("tx", partitions=2)
    changelog.prepare(["tx"])
    for place in PLACES:
        cell = Cell("tx", place.partition, 0, "valid")
        assert written(changelog, place, [Count(cell, 3 + place.partition, 7)])
    (restored,) = restore(changelog, PLACES[1:], EXPIRE).values()
    assert restored.totals.counts() == restored.last == [Count(Cell("tx", 1, 0, "valid"), 4, 7)]


def test_only_the_last_batch_is_published_again(tmp_path: Path) -> None:
    changelog = CountsChangelog(open_broker(f"file:{tmp_path}/topics"), "metrics", "health")
    changelog._broker.create_topic("tx")
    changelog.prepare(["tx"])
    first, second = Cell("tx", 0, 0, "valid"), Cell("tx", 0, 10, "valid")
    written(changelog, PLACES[0], [Count(first, 1, 1)], 5)
    written(changelog, PLACES[0], [Count(second, 1, 2)], 3)  # the clock of another machine
    (restored,) = restore(changelog, PLACES[:1], EXPIRE).values()
    assert restored.last == [Count(second, 1, 2)]
    assert len(restored.totals.counts()) == 2
