"""Topics that are joined meet in the order of time, though their records come in other batches."""

import json
from typing import Any

from tests.spark.dry import DryQuery, Input
from thulawa.runtime.task_options import TaskOptions
from thulawa.spark.micro_batch.program import Program
from thulawa.streams import StreamsBuilder

ORDER = {("orders", 0): [Input(0, 10, b"k", b"1")]}
NAME = {("names", 0): [Input(0, 5, b"k", b'"ann"')]}
LATER = {("names", 0): [Input(1, 50, b"k", b'"bob"')]}


def joined(max_task_idle: Any) -> DryQuery:
    builder = StreamsBuilder()
    names = builder.table("names")
    builder.stream("orders").left_join(names, lambda order, name: [order, name]).to("out")
    options = TaskOptions(commit="batch", max_task_idle=max_task_idle)
    return DryQuery(builder.build(), {"orders": 1, "names": 1}, options)


def merged() -> DryQuery:
    builder = StreamsBuilder()
    builder.stream("a").merge(builder.stream("b")).to("out")
    options = TaskOptions(commit="batch", max_task_idle="1 s")
    return DryQuery(builder.build(), {"a": 1, "b": 1}, options)


def values(rows: list[dict[str, Any]]) -> list[Any]:
    return [json.loads(row["value"]) for row in rows]


def test_a_record_waits_for_the_other_topic_over_a_restart_too() -> None:
    query = joined("1 s")
    assert values(query.batch(ORDER)) == []
    query.attempt(NAME)  # comes to nothing
    query.restart()
    assert values(query.batch(NAME)) == []
    assert values(query.batch(LATER)) == [[1, "ann"]]


def test_when_it_has_waited_long_enough_it_goes_alone() -> None:
    query = joined("1 s")
    query.batch(ORDER)
    query.now += 999
    assert values(query.batch({})) == []
    query.restart()
    query.now += 1
    assert values(query.batch({})) == [[1, None]]
    assert values(query.batch({})) == []


def test_what_waits_of_a_partition_that_is_new_is_not_lost_with_its_worker() -> None:
    query = merged()
    assert values(query.batch({("a", 1): [Input(0, 10, b"k", b"1")]})) == []
    query.restart()
    query.now += 5_000
    assert values(query.batch({})) == [1]


def test_a_partition_that_another_task_has_is_not_waited_for() -> None:
    query = merged()
    query.batch({("a", 1): [Input(0, 10, b"k", b"1")]})
    query.start(query.plan.topology, {"a": 2, "b": 2})
    query.now += 5_000
    assert values(query.batch({})) == [1]
    both = {("a", 0): [Input(0, 20, b"k", b"2")], ("b", 0): [Input(0, 20, b"k", b"3")]}
    assert values(query.batch(both)) == [2]
    query.now += 999
    assert values(query.batch({})) == []


def test_unless_it_is_told_to_wait_it_does_not() -> None:
    assert values(joined(None).batch(ORDER)) == [[1, None]]


def test_the_clock_runs_for_a_program_that_may_wait() -> None:
    waiting, direct = joined("1 s"), joined(None)
    options = TaskOptions(max_task_idle="1 s")
    assert Program("app", "app/1", waiting.plan, options).has_timers
    assert not Program("app", "app/1", direct.plan).has_timers
