"""A program is edited and started again: what it knew is kept, or its loss is refused."""

from pathlib import Path
from typing import Any

import pytest

from tests.spark.dry import DryQuery, Input, Inputs
from thulawa.core.serdes import Serde, Serdes
from thulawa.errors import StateError
from thulawa.runtime.task_options import TaskOptions
from thulawa.spark.micro_batch.checkpoint import Checkpoint
from thulawa.streams import (
    Grouped,
    JoinWindows,
    KStream,
    Materialized,
    Produced,
    Repartitioned,
    SessionWindows,
    SlidingWindows,
    StreamJoined,
    StreamsBuilder,
    TimeWindows,
    Topology,
)

WAITING = TaskOptions(commit="batch", max_task_idle="1 s")


def one(topic: str, offset: int, time: int, value: bytes = b"1", key: bytes = b"k") -> Inputs:
    return {(topic, 0): [Input(offset, time, key, value)]}


def started(
    folder: Path, topology: Topology, *topics: str, options: TaskOptions | None = None
) -> DryQuery:
    return DryQuery(topology, dict.fromkeys(topics, 1), options, Checkpoint(str(folder)))


def left(query: DryQuery, inputs: Inputs) -> list[tuple[str, str]]:
    """Run a batch; give topic and value of what leaves."""
    return [(row["topic"], row["value"].decode()) for row in query.batch(inputs)]


# --- where state is


def merged_beside(store: str) -> Topology:
    builder = StreamsBuilder()
    builder.stream("visits").group_by_key().count(Materialized.as_(store))
    builder.stream("orders").merge(builder.stream("payments")).to("all")
    return builder.build()


def test_a_store_with_the_name_of_a_topic_is_kept_apart_from_what_reads_it(tmp_path: Path) -> None:
    query = started(
        tmp_path, merged_beside("orders"), "visits", "orders", "payments", options=WAITING
    )
    query.batch(one("orders", 0, 1, b'"order"'))
    query.batch(one("visits", 0, 1))
    query.now += 5_000
    assert left(query, {}) == [("all", '"order"')]


def two_counts(*, joined: bool) -> Topology:
    builder = StreamsBuilder()
    visits = builder.stream("visits").group_by_key().count(Materialized.as_("visits"))
    paid = builder.stream("orders").merge(builder.stream("payments"))
    orders = paid.group_by_key().count(Materialized.as_("orders"))
    visits.to_stream().to("visited")
    orders.to_stream().to("ordered")
    if joined:
        visits.join(orders, lambda one, other: [one, other]).to_stream().to("both")
    return builder.build()


def test_stores_that_part_are_refused_and_lose_their_state_if_asked(tmp_path: Path) -> None:
    topics = "visits", "orders", "payments"
    query = started(tmp_path, two_counts(joined=True), *topics)
    query.batch(one("visits", 0, 1))
    query.batch(one("orders", 0, 1))
    with pytest.raises(StateError, match="'orders' moved to a different sub-topology or stage"):
        query.start(two_counts(joined=False), dict.fromkeys(topics, 1))
    query.start(two_counts(joined=False), dict.fromkeys(topics, 1), allow_state_loss=True)
    assert left(query, one("visits", 1, 2)) == [("visited", "2")]
    assert left(query, one("orders", 1, 2)) == [("ordered", "1")]
    assert left(query, one("visits", 2, 3)) == [("visited", "3")]


def test_a_part_that_gets_its_first_store_or_another_topic_keeps_what_it_held(
    tmp_path: Path,
) -> None:
    def merging(*, first: bool = False, counted: bool = False) -> Topology:
        builder = StreamsBuilder()
        paid = builder.stream("orders").merge(builder.stream("payments"))
        paid = paid.merge(builder.stream("first")) if first else paid
        paid.to("all")
        if counted:
            paid.group_by_key().count(Materialized.as_("paid"))
        return builder.build()

    topics = {"orders": 1, "payments": 1, "first": 1}
    query = started(tmp_path, merging(), "orders", "payments", options=WAITING)
    query.batch(one("orders", 0, 1, b'"order"'))
    query.start(merging(first=True), topics)
    query.batch(one("first", 0, 2, b'"first"'))
    query.start(merging(first=True, counted=True), topics)
    assert left(query, {}) == []
    query.now += 5_000
    assert left(query, {}) == [("all", '"order"'), ("all", '"first"')]


# --- names that were made up


def unnamed_counts(before: str | None = None, *, filtered: bool = True) -> Topology:
    """Count what leads to "all" in a store without a name; ``before`` that, for another topic."""
    builder = StreamsBuilder()
    stream = builder.stream("in")
    if before is not None:
        kept = stream.filter(_always) if filtered else stream.map_values(lambda value: value)
        table = kept.group_by_key().count()
        if before:
            table.to_stream().to(before)
    stream.filter(_always).group_by_key().count().to_stream().to("all")
    return builder.build()


def _always(_key: object, _value: object) -> bool:
    return True


@pytest.mark.parametrize(("topic", "filtered"), [("big", True), ("", True), ("all", False)])
def test_a_generated_name_that_moves_on_to_another_operator_is_refused(
    tmp_path: Path,
    topic: str,
    filtered: bool,  # noqa: FBT001 pytest gives it by name
) -> None:
    query = started(tmp_path, unnamed_counts(), "in")
    query.batch(one("in", 0, 0))
    with pytest.raises(StateError, match=r"STORE-0000000002' was that of \(in, filter, aggregate"):
        query.start(unnamed_counts(topic, filtered=filtered), {"in": 1})
    query.start(unnamed_counts(topic, filtered=filtered), {"in": 1}, allow_state_loss=True)
    assert left(query, one("in", 1, 1))[0][1] == "1"


def test_what_follows_a_store_with_a_generated_name_may_change(tmp_path: Path) -> None:
    def counted_on(*topics: str) -> Topology:
        builder = StreamsBuilder()
        stream = builder.stream("in").select_key(lambda _, value: str(value))
        table = stream.group_by_key().count()
        for topic in topics:
            table.to_stream().to(topic)
        stream.group_by_key().count()
        return builder.build()

    query = started(tmp_path, counted_on(), "in")
    query.batch(one("in", 0, 0))
    with pytest.raises(StateError, match="not in the program"):  # of the second count
        query.start(counted_on("out"), {"in": 1})
    query.start(counted_on("out"), {"in": 1}, allow_state_loss=True)
    assert left(query, one("in", 1, 1)) == [("out", "2")]


# --- stream time


def windowed(kind: str, stream: KStream[Any, Any], other: KStream[Any, Any]) -> KStream[Any, Any]:
    """Use an operator that knows a stream time."""
    counts: Materialized[Any, Any] = Materialized.as_("counts")
    grouped = stream.group_by_key()
    if kind == "tumbling":
        return grouped.windowed_by(TimeWindows.of("10 ms")).count(counts).to_stream()
    if kind == "sliding":
        return grouped.windowed_by(SlidingWindows.of("10 ms", grace=0)).count(counts).to_stream()
    if kind == "session":
        return grouped.windowed_by(SessionWindows.of("10 ms", grace=0)).count(counts).to_stream()
    if kind == "cogroup":
        both = grouped.cogroup(lambda _, value, total: total + value)
        both = both.cogroup(other.group_by_key(), lambda _, value, total: total + value)
        table = both.windowed_by(TimeWindows.of("10 ms")).aggregate(lambda: 0, materialized=counts)
        return table.to_stream()
    window = JoinWindows.of("10 ms", grace=0)
    named: StreamJoined[Any, Any] = StreamJoined(store_name="join")
    return stream.left_join(other, lambda one, two: [one, two], window, named)


@pytest.mark.parametrize("kind", ["tumbling", "sliding", "session", "cogroup", "join"])
def test_stream_time_is_kept_when_a_node_in_front_moves_all_names(
    tmp_path: Path, kind: str
) -> None:
    def program(*, filtered: bool) -> Topology:
        builder = StreamsBuilder()
        stream = builder.stream("in")
        stream = stream.filter(lambda _key, _value: True) if filtered else stream
        windowed(kind, stream, builder.stream("other")).to("out")
        return builder.build()

    def late(folder: Path, *, edited: bool) -> list[list[tuple[str, str]]]:
        query = started(folder, program(filtered=False), "in", "other")
        query.batch(one("in", 0, 1000))
        query.start(program(filtered=edited), {"in": 1, "other": 1})
        return [left(query, one("in", 1, 6, key=b"late")), left(query, one("in", 2, 1045))]

    same = late(tmp_path / "same", edited=False)
    assert late(tmp_path / "edited", edited=True) == same


# --- global tables


def looking(*topics: str, windowed: bool = False) -> Topology:
    """Look into a global table from topics, and count what is found."""
    builder = StreamsBuilder()
    names = builder.global_table("names")
    for topic in topics:
        found = builder.stream(topic).join(names, lambda key, _: key, lambda _, name: name)
        found.to(f"{topic}-named")
        grouped = found.group_by_key()
        store: Materialized[Any, Any] = Materialized.as_(f"{topic}-counts")
        if windowed:
            grouped.windowed_by(TimeWindows.of("1 minute")).count(store)
        else:
            grouped.count(store)
    return builder.build()


def test_a_partition_that_is_added_goes_to_a_task_that_has_the_global_table(tmp_path: Path) -> None:
    builder = StreamsBuilder()
    names = builder.global_table("names")
    stream = builder.stream("in")
    stream.join(names, lambda key, value: key, lambda value, name: name).to("out")
    query = DryQuery(builder.build(), {"in": 2, "names": 1}, None, Checkpoint(str(tmp_path)))
    assert left(query, one("names", 0, 1, b'"found"')) == []
    query.start(query.plan.topology, {"in": 3, "names": 1})
    assert left(query, {("in", 2): [Input(0, 2, b"k", b"1")]}) == [("out", '"found"')]


def test_a_global_table_that_would_be_empty_is_refused_or_read_again(tmp_path: Path) -> None:
    counts = {"names": 1, "in": 1, "other": 1}
    query = started(tmp_path, looking("in"), "names", "in")
    query.batch(one("names", 0, 0, b'"ann"'))
    with pytest.raises(StateError, match="'names' has been read, and its global table"):
        query.start(looking("in", "other"), counts)
    query.start(looking("in", "other"), counts, allow_state_loss=True)
    query.batch(one("names", 0, 0, b'"ann"'))  # which Spark does: it is another query
    assert left(query, one("other", 0, 1)) == [("other-named", '"ann"')]
    query.start(looking("in", "other"), counts)
    assert left(query, one("in", 0, 1)) == [("in-named", '"ann"')]
    before = Checkpoint(str(tmp_path)).query_path
    with pytest.raises(StateError, match="'in-counts' was a key-value store"):
        query.start(looking("in", "other", windowed=True), counts)
    query.start(looking("in", "other", windowed=True), counts, allow_state_loss=True)
    assert Checkpoint(str(tmp_path)).query_path != before


# --- the loss that was asked for


def counted(*, windowed: bool = False, partitions: int | None = None) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in")
    if partitions is not None:
        pages = stream.select_key(lambda _, value: value)
        stream = pages.repartition(Repartitioned(name="pages", partitions=partitions))
    grouped = stream.group_by_key()
    if windowed:
        table = grouped.windowed_by(TimeWindows.of("1 minute")).count(Materialized.as_("counts"))
    else:
        table = grouped.count(Materialized.as_("counts"))
    table.to_stream().to("out")
    return builder.build()


def test_a_store_of_another_kind_begins_empty_when_its_loss_is_asked_for(tmp_path: Path) -> None:
    query = started(tmp_path, counted(), "in")
    query.batch(one("in", 0, 0))
    with pytest.raises(StateError, match="'counts' was a key-value store"):
        query.start(counted(windowed=True), {"in": 1})
    query.start(counted(windowed=True), {"in": 1}, allow_state_loss=True)
    assert left(query, one("in", 1, 1)) == [("out", "1")]
    query.start(counted(), {"in": 1}, allow_state_loss=True)
    assert left(query, one("in", 2, 2)) == [("out", "1")]  # and what there was once is not found


def test_a_repartition_of_another_size_begins_empty_when_its_loss_is_asked_for(
    tmp_path: Path,
) -> None:
    values = [f'"{number}"'.encode() for number in range(6)]

    def inputs(start: int) -> Inputs:
        records = [Input(start + n, start + n, b"k", value) for n, value in enumerate(values)]
        return {("in", 0): records}

    query = started(tmp_path, counted(partitions=2), "in")
    query.batch(inputs(0))
    query.start(counted(partitions=3), {"in": 1}, allow_state_loss=True)
    assert left(query, inputs(6)) == [("out", "1")] * 6


def test_a_store_that_was_taken_out_does_not_come_back_with_what_is_left_of_it(
    tmp_path: Path,
) -> None:
    def counts(*, more: bool) -> Topology:
        builder = StreamsBuilder()
        grouped = builder.stream("in").group_by_key()
        grouped.count(Materialized.as_("counts")).to_stream().to("out")
        if more:
            grouped.count(Materialized.as_("more")).to_stream().to("more")
        return builder.build()

    query = started(tmp_path, counts(more=True), "in")
    query.batch(one("in", 0, 0))
    with pytest.raises(StateError, match="'more' is in the checkpoint and not in the program"):
        query.start(counts(more=False), {"in": 1})
    query.start(counts(more=False), {"in": 1}, allow_state_loss=True)
    assert left(query, one("in", 1, 1)) == [("out", "2")]  # what survives is kept
    with pytest.raises(StateError, match="'more' was removed from the program and put back"):
        query.start(counts(more=True), {"in": 1})
    query.start(counts(more=True), {"in": 1}, allow_state_loss=True)
    assert sorted(left(query, one("in", 2, 2))) == [("more", "1"), ("out", "1")]


def by_number(key_serde: Serde[Any] | None) -> Topology:
    builder = StreamsBuilder()
    grouped: Grouped[Any, Any] = Grouped(key_serde=key_serde)
    counted = builder.stream("visits").group_by(lambda _, value: value, grouped)
    counts = counted.count(Materialized.as_("counts")).to_stream(lambda _, count: "all")
    counts.to("out", Produced(value_serde=Serdes.json()))
    return builder.build()


def test_a_store_whose_keys_would_be_written_otherwise_is_refused(tmp_path: Path) -> None:
    query = started(tmp_path, by_number(Serdes.json()), "visits")
    assert left(query, one("visits", 0, 1)) == [("out", "1")]
    with pytest.raises(StateError, match="keys written as JSON and now as long: they would not be"):
        query.start(by_number(Serdes.long()), {"visits": 1})
    query.start(by_number(Serdes.json()), {"visits": 1})
    assert left(query, one("visits", 1, 1)) == [("out", "2")]


def test_a_store_of_plain_keys_may_be_said_to_have_text(tmp_path: Path) -> None:
    query = started(tmp_path, by_number(None), "visits")
    assert left(query, one("visits", 0, 1, b'"a"')) == [("out", "1")]
    query.start(by_number(Serdes.string()), {"visits": 1})
    assert left(query, one("visits", 1, 1, b'"a"')) == [("out", "2")]
