"""Two-step aggregation: the same results, and fewer records on their way."""

from collections.abc import Callable
from typing import Any

import pytest

from thulawa.errors import TopologyError
from thulawa.runtime.planning import SOURCE_STAGE, plan
from thulawa.runtime.task import Task
from thulawa.runtime.task_options import TaskOptions
from thulawa.streams import (
    Grouped,
    Materialized,
    SessionWindows,
    StreamsBuilder,
    TimeWindows,
    Topology,
)
from thulawa.testing import TopologyTestDriver

ONCE: Grouped[Any, Any] = Grouped(name="by")
TWICE: Grouped[Any, Any] = Grouped(name="by", two_step=True)


def built(make: Callable[[Any], Any], grouped: Grouped[Any, Any]) -> Topology:
    builder = StreamsBuilder()
    make(builder.stream("in").group_by(lambda k, v: str(v), grouped)).to_stream().to("out")
    return builder.build()


def counted(grouped: Any) -> Any:
    return grouped.count(Materialized.as_("counts"))


class Sent:
    """A collector that remembers."""

    def __init__(self) -> None:
        self.records: list[tuple[Any, Any, int]] = []

    def send(self, sink: Any, topic: str, key: Any, value: Any, timestamp: int, _: Any) -> None:
        self.records.append((key, value, timestamp))


def batch(topology: Topology, times: list[int]) -> tuple[list[Any], list[Any]]:
    """Run one batch; give what goes through the repartition, and what leaves."""
    options = TaskOptions(commit="batch")
    records = [(n, time, "k", f"w{n % 7}", ()) for n, time in enumerate(times)]
    between, out = Sent(), Sent()
    first, second = topology.subtopologies()
    for group, sent, topic in ((first, between, "in"), (second, out, "by-repartition")):
        task = Task(group, topology, sent, options=options)
        task.add(topic, 0, records)
        task.run()
        records = [(n, time, key, value, ()) for n, (key, value, time) in enumerate(sent.records)]
    return between.records, out.records


def test_parts_travel_once_per_key_with_their_highest_timestamp() -> None:
    times = [5, 9, 7, 2, 8, 1, 3, 6]
    assert len(batch(built(counted, ONCE), times)[0]) == 8
    assert batch(built(counted, TWICE), times)[0][:2] == [("w0", 2, 6), ("w1", 1, 9)]


@pytest.mark.parametrize(
    "make",
    [
        counted,
        lambda grouped: grouped.reduce(lambda one, other: one + other),
        lambda grouped: grouped.aggregate(
            list, lambda k, v, seen: [*seen, v], merger=lambda k, one, other: one + other
        ),
    ],
    ids=["count", "reduce", "aggregate"],
)
def test_results_are_those_of_one_step(make: Callable[[Any], Any]) -> None:
    times = list(range(100))
    _, one_step = batch(built(make, ONCE), times)
    between, two_steps = batch(built(make, TWICE), times)
    assert len(one_step) == 100
    assert len(between) == len(two_steps) == 7
    last = {key: (value, time) for key, value, time in one_step}
    assert {key: (value, time) for key, value, time in two_steps} == last


def test_with_a_commit_per_record_every_update_leaves() -> None:
    with TopologyTestDriver(built(counted, TWICE)) as driver:
        driver.create_input_topic("in").pipe_key_value_list([("k", "a"), ("k", "b"), ("k", "a")])
        found = driver.create_output_topic("out").read_key_values_to_list()
    assert found == [("a", 1), ("b", 1), ("a", 2)]


def test_records_without_a_value_or_a_key_do_not_count() -> None:
    builder = StreamsBuilder()
    rekeyed = builder.stream("in").group_by(lambda k, v: k, TWICE)
    counted(rekeyed).to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in")
        topic.pipe_key_value_list([("a", 1), ("a", None), (None, 1)])
        assert driver.create_output_topic("out").read_key_values_to_list() == [("a", 1)]


def test_the_first_step_stands_where_the_topic_is_read() -> None:
    made = plan(built(counted, TWICE), {"in": 2})
    assert [part.stage for part in made.parts.values()] == [SOURCE_STAGE, 1]


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "key unchanged": (lambda s: s.group_by_key(TWICE).count(), "the key has not changed"),
    "no merger": (
        lambda s: s.group_by(lambda k, v: v, TWICE).aggregate(int, lambda k, v, n: n + v),
        "pass a merger",
    ),
    "windows": (
        lambda s: s.group_by(lambda k, v: v, TWICE).windowed_by(TimeWindows.of(9)).count(),
        "late for a window",
    ),
    "sessions": (
        lambda s: s.group_by(lambda k, v: v, TWICE).windowed_by(SessionWindows.of(9)).count(),
        "late for a window",
    ),
    "cogroup": (
        lambda s: s.group_by(lambda k, v: v, TWICE).cogroup(lambda k, v, n: n).aggregate(list),
        "a cogroup cannot",
    ),
    "table": (
        lambda s: s.to_table().group_by(lambda k, v: (v, k), TWICE),
        "subtracted again",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_two_steps_cannot_do_is_refused_at_the_users_line(case: str) -> None:
    program, reason = REFUSED[case]
    with pytest.raises(TopologyError, match=reason) as refusal:
        program(StreamsBuilder().stream("in"))
    assert "test_two_steps.py" in str(refusal.value)
