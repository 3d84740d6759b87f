"""A task that is rebuilt from its changelogs goes on exactly as the one that wrote them."""

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import msgspec
import pytest

from thulawa.brokers.embedded.batches import Columns, pack, unpack
from thulawa.core.types import TopicPartition
from thulawa.runtime.planning import StagedSubTopology, plan
from thulawa.runtime.recovery_plan import RecoveryPlan, batch_stamp
from thulawa.spark.micro_batch import changelog_output
from thulawa.spark.micro_batch.program import Program
from thulawa.spark.micro_batch.restore import next_offsets
from thulawa.spark.micro_batch.task_host import HostedTask, RestoreReport, RestoringTask
from thulawa.spark.micro_batch.wire import SINK, Packed
from thulawa.spark.task_context import SparkTask
from thulawa.streams import JoinWindows, SessionWindows, StreamsBuilder, Suppressed, TimeWindows
from thulawa.topology.topology import Topology

Row = tuple[bytes | None, bytes | None, int, tuple[tuple[str, bytes], ...]]


class Store(dict[str, bytes]):
    full = False

    def put(self, name: str, data: bytes) -> None:
        if self.full:
            raise OSError("full")
        self[name] = data

    def remove(self, name: str) -> None:
        del self[name]


def counted(builder: StreamsBuilder) -> Any:
    return builder.stream("a").group_by_key().count().to_stream()


def windowed(builder: StreamsBuilder) -> Any:
    windows = TimeWindows.of("10 ms", grace="5 ms")
    return builder.stream("a").group_by_key().windowed_by(windows).count().to_stream()


def closed_windows(builder: StreamsBuilder) -> Any:
    windows = TimeWindows.of("10 ms", grace="5 ms")
    counted = builder.stream("a").group_by_key().windowed_by(windows).count()
    return counted.suppress(Suppressed.until_window_closes()).to_stream()


def sessions(builder: StreamsBuilder) -> Any:
    windows = SessionWindows.of("3 ms", grace="5 ms")
    return builder.stream("a").group_by_key().windowed_by(windows).count().to_stream()


def joined(builder: StreamsBuilder) -> Any:
    windows = JoinWindows.of("5 ms", grace="2 ms")
    return builder.stream("a").left_join(
        builder.stream("b"), lambda left, right: [left, right], windows
    )


def tables(builder: StreamsBuilder) -> Any:
    left, right = builder.table("a"), builder.table("b")
    return left.outer_join(right, lambda one, two: [one, two]).to_stream()


def program(make: Callable[[StreamsBuilder], Any], recovery: RecoveryPlan | None = None) -> Program:
    builder = StreamsBuilder()
    make(builder).to("out")
    made: Topology = builder.build()
    planned = plan(made, {"a": 2, "b": 2})
    logs = {name: f"app-{name}-changelog" for name in made.stores}
    return Program("app", "run", planned, changelogs=logs, recovery=recovery)


def rows(topic: str, first: int, records: list[Row]) -> Packed:
    keys, values, times, headers = zip(*records, strict=True)
    columns = Columns(range(first, first + len(records)), times, keys, values, headers)
    return Packed(0, 1, 0, topic, 0, f"{topic}/{first:020}", pack(columns))


def batch(number: int) -> list[Packed]:
    """Give records of both topics; some come late, some take keys away."""
    made = []
    for shift, topic in enumerate(("a", "b")):
        times = [number * 20 + n * 3 - (25 if n % 4 == 0 else 0) + shift for n in range(8)]
        records: list[Row] = [
            (b"k%d" % (n % 3), None if topic == "b" and n == 5 else b"%d" % n, max(time, 0), ())
            for n, time in enumerate(times)
        ]
        made.append(rows(topic, number * 8, records))
    return made


def sent(packed: Iterable[Iterable[Packed]]) -> dict[str, list[Row]]:
    """Give what leaves, by topic."""
    found: dict[str, list[Row]] = {}
    for row in chain.from_iterable(packed):
        assert row.stage == SINK
        for _, time, key, value, headers in unpack(row.data, 0).rows():
            found.setdefault(row.topic, []).append((key, value, time, headers))
    return found


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    def now(number: int) -> None:
        monkeypatch.setattr(changelog_output, "current_task", lambda: SparkTask(0, "q", number))

    return now


def only_part(made: Program) -> StagedSubTopology:
    (part,) = made.plan.parts.values()
    return part


@pytest.mark.parametrize("make", [counted, windowed, sessions, tables])
def test_nothing_stays_of_a_batch_that_is_given_up_once_its_outputs_have_left(
    make: Callable[[StreamsBuilder], Any], at: Callable[[int], None]
) -> None:
    made = program(make)
    part = only_part(made)
    kept, task = Store(), HostedTask(made, part, 0)
    other, model = Store(), HostedTask(made, part, 0)
    for number in range(3):
        at(number)
        given = [row for row in batch(number) if row.topic == "a"]
        before = dict(kept)
        cut_off = task.run(given, 1_000, kept)
        first = sent([next(cut_off)])
        assert kept == before  # the stores are kept after that
        if number % 2:
            cut_off.close()
        else:
            kept.full = True
            with pytest.raises(OSError, match="full"):
                list(cut_off)
            kept.full = False
        assert sent(task.run(given, 1_000, kept)) == first == sent(model.run(given, 1_000, other))
        assert kept != before


@pytest.mark.parametrize("make", [windowed, closed_windows, sessions, joined, tables])
@pytest.mark.parametrize("taken_back", [False, True], ids=["whole", "without its last batch"])
def test_a_restored_task_does_what_the_first_would_have_done(
    make: Callable[[StreamsBuilder], Any], at: Callable[[int], None], *, taken_back: bool
) -> None:
    made = program(make)
    part = only_part(made)
    topics = {topic for source in part.group.sources for topic in source.topics}
    kept, first = Store(), HostedTask(made, part, 0)
    outputs: list[list[Row]] = []
    logs: dict[str, list[Row]] = {}
    for number in range(4):
        at(number)
        out = sent(first.run([r for r in batch(number) if r.topic in topics], 1_000, kept))
        outputs.append(out.pop("out", []))
        if number < 3:
            for topic, records in out.items():
                logs.setdefault(topic, []).extend(records)
    assert any(outputs[3])

    stamps = frozenset({batch_stamp("q", 2)}) if taken_back else frozenset()
    restoring = program(make, RecoveryPlan({}, stamps=stamps))
    rebuilt, half = Store(), RestoringTask(restoring, only_part(restoring), 0)
    reports: list[RestoreReport] = []
    for step in range(2):  # in two batches of its own
        some = _halves(logs, step)
        packed = [rows(topic, step * 100, records) for topic, records in some.items() if records]
        told = chain(*half.run(packed, 0, rebuilt))
        reports += [_report(one) for one in told]
    for report in {one.store: one for one in reports}.values():
        assert report.found is not None
        assert report.wanted is not None
        assert report.found.holds(report.wanted)

    again = HostedTask(made, part, 0)
    for number in range(2 if taken_back else 3, 4):
        at(number)
        out = sent(again.run([r for r in batch(number) if r.topic in topics], 1_000, rebuilt))
        assert out.get("out", []) == outputs[number]


def _halves(logs: dict[str, list[Row]], step: int) -> dict[str, list[Row]]:
    """Give the first half of each changelog, then the second; every record, in order."""
    cut = {topic: len(records) // 2 for topic, records in logs.items()}
    return {
        topic: records[: cut[topic]] if step == 0 else records[cut[topic] :]
        for topic, records in logs.items()
    }


def _report(row: Packed) -> RestoreReport:
    return msgspec.json.decode(row.data, type=RestoreReport)


def test_a_restore_continues_behind_what_was_deleted_from_an_internal_topic() -> None:
    begins = {"in": {0: 5}, "app-inner": {0: 27, 1: 3}}
    known = {TopicPartition("in", 0): 4, TopicPartition("app-inner", 0): 26}
    found = next_offsets(begins, known, ["app-inner"])
    assert found["app-inner"] == {0: 27, 1: 3}, "offset 26 was the end of a transaction"
    assert found["in"] == {0: 4}, "records that retention has removed are an error, not a gap"
