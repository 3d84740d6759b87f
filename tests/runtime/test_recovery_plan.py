"""An application whose checkpoint is lost goes on from its own topics as if it had not been."""

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from thulawa.core.types import TopicPartition
from thulawa.errors import StateError
from thulawa.runtime.recovery_plan import Generation, Progress, batch_stamp, recover
from thulawa.state.backing import TrackedEntries
from thulawa.state.specs import StoreSpec
from thulawa.state.store_changelog import POSITION, Position, StoreChangelog
from thulawa.testing import seeds

LOG = StoreChangelog(StoreSpec(name="counts"))
Record = tuple[bytes, bytes | None, bytes | None, str]  # key, value, before, stamp


class CrashError(Exception):
    """The driver is gone, at whatever point."""


@dataclass
class Brokers:
    """What survives: topics, and the markers of tasks, written task by task."""

    sources: list[list[int]]
    generation: Generation | None = None
    markers: dict[int, tuple[str, int]] = field(default_factory=dict)
    progress: dict[tuple[int, tuple[str, int]], Progress] = field(default_factory=dict)
    changelogs: dict[int, list[Record]] = field(default_factory=dict)
    outputs: list[tuple[int, int]] = field(default_factory=list)

    def compact(self, draw: random.Random) -> None:
        """Keep of each key the last record, in the part of a changelog that is clean."""
        for task, records in self.changelogs.items():
            clean = draw.randrange(len(records) + 1)
            last = {key: at for at, (key, *_) in enumerate(records)}
            self.changelogs[task] = [
                record for at, record in enumerate(records) if at >= clean or last[record[0]] == at
            ]


@dataclass
class Checkpoint:
    """What a query keeps: it may be lost."""

    query: str
    batch: int  # the last that is committed
    offsets: dict[int, int]
    planned: dict[int, int] | None = None  # the end of the batch that was begun
    states: dict[int, tuple[TrackedEntries, Position | None]] = field(default_factory=dict)


class Application:
    """Counts numbers by what is left of them after a division; any record may go to any task."""

    def __init__(self, brokers: Brokers, tasks: int, draw: random.Random) -> None:
        self.brokers, self.tasks, self.draw = brokers, tasks, draw
        self.names = 0
        self.checkpoint: Checkpoint | None = None

    def run(self, batches: int) -> None:
        """Go on for some batches; every step may be the last."""
        if self.checkpoint is None:
            self.checkpoint = self.restored()
        for _ in range(batches):
            self.batch(self.checkpoint)

    def restored(self) -> Checkpoint:
        brokers, query = self.brokers, f"query-{self.names}"
        self.names += 1
        if brokers.generation is None:
            brokers.generation = Generation(query)
            return Checkpoint(query, -1, dict.fromkeys(range(len(brokers.sources)), 0))
        now = brokers.generation.query
        markers = {t: batch for t, (q, batch) in brokers.markers.items() if q == now}
        todo = recover(brokers.generation, self.tasks, markers, brokers.progress.values())
        self.may_crash()
        states = {task: self.read(task, todo.stamps) for task in range(self.tasks)}
        first = self.draw.randrange(3)  # restoring takes some batches of its own
        starts = {
            p: todo.starts.get(TopicPartition("in", p), 0) for p in range(len(brokers.sources))
        }
        made = Checkpoint(query, first, starts, states=states)
        if todo.ends is not None:
            made.planned = {p: todo.ends.get(TopicPartition("in", p), 0) for p in starts}
        brokers.generation = Generation(query, first, todo.done, tuple(sorted(todo.stamps)))
        for task in todo.done:
            self.may_crash()
            brokers.markers[task] = (query, first + 1)
        return made

    def read(self, task: int, stamps: frozenset[str]) -> tuple[TrackedEntries, Position | None]:
        entries, position = TrackedEntries(), None
        for key, value, before, stamp in self.brokers.changelogs.get(task, ()):
            kept = before if stamp in stamps else value
            if key == POSITION:
                position = None if kept is None else Position.decode(kept)
            else:
                entries.apply([LOG.read(key, kept)])
        assert LOG.position(entries).holds(position or Position())
        return entries, position

    def batch(self, checkpoint: Checkpoint) -> None:
        starts, number = checkpoint.offsets, checkpoint.batch + 1
        ends = checkpoint.planned
        if ends is None:
            ends = checkpoint.planned = {
                p: self.draw.randint(start, len(self.brokers.sources[p]))
                for p, start in starts.items()
            }
        self.may_crash()
        records = [n for p, end in ends.items() for n in self.brokers.sources[p][starts[p] : end]]
        stamp = batch_stamp(checkpoint.query, number)
        read = [Progress(TopicPartition("in", p), stamp, starts[p], end) for p, end in ends.items()]
        states = {}
        for task in self.draw.sample(range(self.tasks), self.tasks):
            mine = [n for n in records if n % self.tasks == task]
            states[task] = self.work(checkpoint, task, number, mine, read)
            self.may_crash()
        for task, (entries, position) in states.items():
            entries.before.clear()
            checkpoint.states[task] = entries, position
        checkpoint.batch, checkpoint.offsets, checkpoint.planned = number, ends, None

    def work(
        self, checkpoint: Checkpoint, task: int, number: int, mine: list[int], read: list[Progress]
    ) -> tuple[TrackedEntries, Position | None]:
        old, last = checkpoint.states.get(task, (TrackedEntries(), None))
        entries = TrackedEntries()
        entries.apply(old.items())
        outputs = []
        for n in mine:
            count = (entries.get(n % 7) or 0) + 1
            if count % 5:
                entries[n % 7] = count
            else:
                entries.pop(n % 7)
            outputs.append((n, count))
        if not mine:  # a task without records is not called, but its writer commits
            self.commit(checkpoint.query, task, number, [], [], read)
            return entries, last
        changes, position = LOG.changes(entries, last, b"")
        stamp = batch_stamp(checkpoint.query, number)
        self.commit(checkpoint.query, task, number, [(*c, stamp) for c in changes], outputs, read)
        return entries, position

    def commit(
        self, query: str, task: int, number: int, changes: list[Record],
        outputs: list[tuple[int, int]], read: list[Progress],
    ) -> None:  # fmt: skip
        written = self.brokers.markers.get(task, ("", -1))
        if written[0] == query and written[1] >= number:
            return
        self.brokers.markers[task] = (query, number)
        self.brokers.changelogs.setdefault(task, []).extend(changes)
        self.brokers.outputs.extend(outputs)
        self.brokers.progress |= {(task, one.source): one for one in read if one.end > one.start}

    def may_crash(self) -> None:
        if self.draw.random() < 0.15:
            raise CrashError


def model(sources: list[list[int]], tasks: int) -> dict[int, Counter[int]]:
    counts: dict[int, Counter[int]] = {task: Counter() for task in range(tasks)}
    for n in (n for numbers in sources for n in numbers):
        counts[n % tasks][n % 7] += 1
    return counts


@pytest.mark.parametrize("seed", seeds(150))
def test_whatever_is_lost_and_whenever_every_record_counts_once(seed: int) -> None:
    draw = random.Random(seed)
    tasks = draw.choice([1, 2, 3])
    brokers = Brokers([list(range(p * 1000, p * 1000 + 40)) for p in range(2)])
    application = Application(brokers, tasks, draw)
    for _ in range(60):
        try:
            application.run(draw.randrange(4))
        except CrashError:
            if draw.random() < 0.6:
                application.checkpoint = None
        if draw.random() < 0.2:
            application.checkpoint = None
        brokers.compact(draw)
    draw.random = lambda: 1.0  # type: ignore[method-assign] # calm from here on
    while application.checkpoint is None or set(application.checkpoint.offsets.values()) != {40}:
        application.run(1)

    assert Counter(n for n, _ in brokers.outputs) == Counter(
        n for numbers in brokers.sources for n in numbers
    )
    for task, counted in model(brokers.sources, tasks).items():
        entries, _ = application.checkpoint.states.get(task, (TrackedEntries(), None))
        assert dict(entries) == {key: count % 5 for key, count in counted.items() if count % 5}


def test_tasks_that_stand_further_apart_than_one_batch_are_refused() -> None:
    with pytest.raises(StateError, match="markers of some are lost"):
        recover(Generation("q"), 2, {0: 4, 1: 6}, [])


def test_within_a_batch_only_the_last_value_of_a_key_is_written() -> None:
    entries = TrackedEntries()
    entries.apply([("a", 1), ("b", 2), ("c", 3)])
    for key, value in [("a", 7), ("a", 8), ("b", 5), ("b", 2), ("d", 1)]:
        entries[key] = value
    entries.pop("c")
    entries.pop("d")
    last = LOG.position({"a": 1, "b": 2, "c": 3})
    changes, position = LOG.changes(entries, last, b"")
    *records, (mark, _, before) = changes
    told: list[Any] = [(LOG.read(key, value), LOG.read(key, old)[1]) for key, value, old in records]
    assert told == [(("a", 8), 1), (("c", None), 3)]
    assert (mark, before) == (POSITION, last.encode())
    assert position.holds(LOG.position({"a": 8, "b": 2}))


def test_a_changelog_whose_keys_have_another_form_is_refused() -> None:
    before_identities = msgspec.msgpack.encode([1, 2, b""])
    with pytest.raises(StateError, match="by another version of Thulawa: use that version"):
        Position.decode(before_identities)
