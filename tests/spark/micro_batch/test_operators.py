"""Every operator and option either runs on Spark's workers, or is refused before it starts.

The tables below must name all there are: one that is added has to be given its place here.
"""

import threading
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tests.spark.dry import dry_run
from thulawa import streams as dsl
from thulawa.brokers.embedded import Log
from thulawa.errors import TopologyError
from thulawa.spark.application import Streams
from thulawa.streams import (
    AsyncProcessor,
    Branched,
    Consumed,
    EmitStrategy,
    Grouped,
    Joined,
    JoinWindows,
    Materialized,
    Processor,
    Produced,
    Record,
    Repartitioned,
    Serdes,
    SessionWindows,
    SlidingWindows,
    StoreSpec,
    StreamJoined,
    StreamsBuilder,
    Suppressed,
    TableJoined,
    TimeWindows,
    Topology,
    ValueTransformer,
)

SECOND = TimeWindows.of(1_000)
NEAR = JoinWindows.of(1_000)
Program = Callable[[StreamsBuilder], Any]


class Echo(Processor[Any, Any, Any, Any]):
    def process(self, record: Record[Any, Any]) -> None:
        self.context.forward(record)


class AsyncEcho(AsyncProcessor[Any, Any, Any, Any]):
    async def process(self, record: Record[Any, Any]) -> None:
        self.context.forward(record)


class Same(ValueTransformer[Any, Any, Any]):
    def transform(self, key: Any, value: Any) -> Any:
        return value


async def pair(key: Any, value: Any) -> Any:
    return key, value


async def pairs(key: Any, value: Any) -> Any:
    return [(key, value)]


async def same(value: Any) -> Any:
    return value


async def all_same(records: Any) -> Any:
    return [record.value for record in records]


def left(one: Any, other: Any) -> Any:
    return one


def key(key: Any, value: Any) -> Any:
    return str(value % 2)


def fold(key: Any, value: Any, total: Any) -> Any:
    return total + value


def plus(key: Any, one: Any, other: Any) -> Any:
    return one + other


def s(b: StreamsBuilder) -> Any:
    return b.stream("a")


def t(b: StreamsBuilder) -> Any:
    return b.table("b", materialized=Materialized.as_("table-b"))


def first(key: Any, value: Any, partitions: int) -> int:
    return 0


def refers(b: StreamsBuilder, joined: TableJoined) -> Any:
    return t(b).join(b.table("a"), left, foreign_key=lambda v: f"k{v}", named=joined)


def g(b: StreamsBuilder) -> Any:
    return s(b).group_by(key)


def w(b: StreamsBuilder) -> Any:
    return g(b).windowed_by(SECOND)


def sessions(b: StreamsBuilder) -> Any:
    return g(b).windowed_by(SessionWindows.of(1_000))


def co(b: StreamsBuilder) -> Any:
    return g(b).cogroup(fold)


def gt(b: StreamsBuilder) -> Any:
    return t(b).group_by(lambda k, v: (str(v % 2), v))


OPERATORS: dict[str, Program] = {
    "StreamsBuilder.stream": s,
    "StreamsBuilder.table": t,
    "StreamsBuilder.global_table": lambda b: s(b).join(b.global_table("b"), lambda k, v: k, left),
    "StreamsBuilder.from_": lambda b: b.from_("a"),
    "StreamsBuilder.build": s,
    "StreamsBuilder.add_state_store": lambda b: s(b.add_state_store(StoreSpec(name="own"))).process(
        Echo, "own"
    ),
    "KStream.filter": lambda b: s(b).filter(lambda k, v: True),
    "KStream.filter_not": lambda b: s(b).filter_not(lambda k, v: False),
    "KStream.map": lambda b: s(b).map(lambda k, v: (k, v)),
    "KStream.map_values": lambda b: s(b).map_values(lambda v: v),
    "KStream.flat_map": lambda b: s(b).flat_map(lambda k, v: [(k, v)]),
    "KStream.flat_map_values": lambda b: s(b).flat_map_values(lambda v: [v]),
    "KStream.select_key": lambda b: s(b).select_key(key),
    "KStream.peek": lambda b: s(b).peek(lambda k, v: None),
    "KStream.foreach": lambda b: (s(b).foreach(lambda k, v: None), s(b))[1],
    "KStream.print": lambda b: (s(b).print(), s(b))[1],
    "KStream.split": lambda b: s(b).split().default_branch()["KSTREAM-BRANCH-00000000010"],
    "KStream.branch": lambda b: s(b).branch(lambda k, v: True)[0],
    "KStream.merge": lambda b: s(b).merge(b.stream("b")),
    "KStream.to": lambda b: (s(b).to("elsewhere"), s(b))[1],
    "KStream.send_to": lambda b: (s(b).send_to("elsewhere"), s(b))[1],
    "KStream.through": lambda b: s(b).through("b"),
    "KStream.repartition": lambda b: s(b).repartition(),
    "KStream.to_table": lambda b: s(b).to_table(),
    "KStream.group_by_key": lambda b: s(b).group_by_key().count(),
    "KStream.group_by": lambda b: g(b).count(),
    "KStream.process": lambda b: s(b).process(Echo),
    "KStream.process_values": lambda b: s(b).process_values(Echo),
    "KStream.join": lambda b: s(b).join(t(b), left),
    "KStream.left_join": lambda b: s(b).left_join(t(b), left),
    "KStream.outer_join": lambda b: s(b).outer_join(b.stream("b"), left, NEAR),
    "KStream.join_prior": lambda b: s(b).join_prior(b.stream("b"), left, NEAR),
    "KStream.with_": lambda b: s(b).with_(NEAR).join(b.stream("b").with_(NEAR), left),
    "KStream.map_async": lambda b: s(b).map_async(pair),
    "KStream.map_values_async": lambda b: s(b).map_values_async(same),
    "KStream.flat_map_async": lambda b: s(b).flat_map_async(pairs),
    "KStream.batch_async": lambda b: s(b).batch_async(all_same),
    "KStream.process_async": lambda b: s(b).process_async(AsyncEcho),
    "KTable.filter": lambda b: t(b).filter(lambda k, v: True),
    "KTable.filter_not": lambda b: t(b).filter_not(lambda k, v: False),
    "KTable.map_values": lambda b: t(b).map_values(lambda v: v),
    "KTable.transform_values": lambda b: t(b).transform_values(Same, Materialized.as_("same")),
    "KTable.group_by": lambda b: gt(b).count(),
    "KTable.join": lambda b: t(b).join(b.table("a"), left),
    "KTable.left_join": lambda b: t(b).left_join(b.table("a"), left),
    "KTable.outer_join": lambda b: t(b).outer_join(b.table("a"), left),
    "KTable.suppress": lambda b: t(b).suppress(Suppressed.until_time_limit(0)),
    "KTable.to_stream": lambda b: t(b).to_stream(),
    "KGroupedStream.count": lambda b: g(b).count(),
    "KGroupedStream.reduce": lambda b: g(b).reduce(left),
    "KGroupedStream.aggregate": lambda b: g(b).aggregate(lambda: 0, fold),
    "KGroupedStream.windowed_by": lambda b: g(b).windowed_by(SlidingWindows.of(500)).count(),
    "KGroupedStream.cogroup": lambda b: co(b).aggregate(lambda: 0),
    "KGroupedTable.count": lambda b: gt(b).count(),
    "KGroupedTable.reduce": lambda b: gt(b).reduce(left, left),
    "KGroupedTable.aggregate": lambda b: gt(b).aggregate(lambda: 0, fold, fold),
    "TimeWindowedKStream.count": lambda b: w(b).count(),
    "TimeWindowedKStream.reduce": lambda b: w(b).reduce(left),
    "TimeWindowedKStream.aggregate": lambda b: w(b).aggregate(lambda: 0, fold),
    "TimeWindowedKStream.emit_strategy": lambda b: (
        g(b).windowed_by(TimeWindows.of(1)).emit_strategy(EmitStrategy.on_window_close()).count()
    ),
    "SessionWindowedKStream.count": lambda b: sessions(b).count(),
    "SessionWindowedKStream.reduce": lambda b: sessions(b).reduce(left),
    "SessionWindowedKStream.aggregate": lambda b: sessions(b).aggregate(lambda: 0, fold, plus),
    "SessionWindowedKStream.emit_strategy": lambda b: (
        g(b).windowed_by(SessionWindows.of(1)).emit_strategy(EmitStrategy.on_window_close()).count()
    ),
    "CogroupedKStream.cogroup": lambda b: (
        co(b).cogroup(b.stream("b").group_by(key, Grouped(name="by")), fold).aggregate(lambda: 0)
    ),
    "CogroupedKStream.aggregate": lambda b: co(b).aggregate(lambda: 0),
    "CogroupedKStream.windowed_by": lambda b: co(b).windowed_by(SECOND).aggregate(lambda: 0),
    "WindowedCogroupedKStream.aggregate": lambda b: (
        co(b).windowed_by(SessionWindows.of(1_000)).aggregate(lambda: 0, plus)
    ),
    "BranchedKStream.branch": lambda b: (
        s(b).split().branch(lambda k, v: True, Branched(name="x")).no_default_branch()
    ),
    "BranchedKStream.default_branch": lambda b: s(b).split().default_branch(Branched(name="x")),
    "BranchedKStream.no_default_branch": lambda b: (
        s(b).split().branch(lambda k, v: True, Branched(name="x")).no_default_branch()
    ),
}
_INNER = {  # parts of the library itself: nothing a program calls
    "KStream.at",
    "KStream.repartitioned",
    "KStream.source",
    "KGroupedStream.after_first_step",
    "KGroupedStream.aggregated",
    "KGroupedStream.repartitioned",
}
_CLASSES = (
    "StreamsBuilder", "KStream", "KTable", "KGroupedStream", "KGroupedTable", "TimeWindowedKStream",
    "SessionWindowedKStream", "CogroupedKStream", "WindowedCogroupedKStream", "BranchedKStream",
)  # fmt: skip
RECORDS: list[tuple[bytes | None, bytes | None]] = [(b"k%d" % n, b"%d" % n) for n in range(4)]


def built(program: Program) -> Topology:
    builder = StreamsBuilder()
    made = program(builder)
    if isinstance(made, dict):
        (made,) = made.values()
    if isinstance(made, dsl.KTable):
        made = made.to_stream()
    made.to("out")
    return builder.build()


def run(program: Program) -> Any:
    return dry_run(built(program), {"b": RECORDS, "a": RECORDS})


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_run(name: str) -> None:
    assert "out" in run(OPERATORS[name])


def test_no_operator_is_left_out() -> None:
    there = {
        f"{name}.{method}"
        for name in _CLASSES
        for method in dir(getattr(dsl, name))
        if not method.startswith("_") and callable(getattr(getattr(dsl, name), method))
    }
    assert there - _INNER == set(OPERATORS)


TEXT, JSON = Serdes.string(), Serdes.json()
OPTIONS: dict[str, Program] = {
    "Consumed.name": lambda b: b.stream("a", Consumed(name="read")),
    "Consumed.key_serde": lambda b: b.stream("a", Consumed(key_serde=TEXT)),
    "Consumed.value_serde": lambda b: b.stream("a", Consumed(value_serde=JSON)),
    "Consumed.timestamp_extractor": lambda b: b.stream(
        "a", Consumed(timestamp_extractor=lambda time, k, v, before: time)
    ),
    "Produced.name": lambda b: (s(b).to("x", Produced(name="write")), s(b))[1],
    "Produced.key_serde": lambda b: (s(b).to("x", Produced(key_serde=TEXT)), s(b))[1],
    "Produced.value_serde": lambda b: (s(b).to("x", Produced(value_serde=JSON)), s(b))[1],
    "Grouped.name": lambda b: s(b).group_by(key, Grouped(name="by")).count(),
    "Grouped.key_serde": lambda b: s(b).group_by(key, Grouped(key_serde=TEXT)).count(),
    "Grouped.value_serde": lambda b: s(b).group_by(key, Grouped(value_serde=JSON)).count(),
    "Grouped.two_step": lambda b: s(b).group_by(key, Grouped(two_step=True)).count(),
    "Repartitioned.name": lambda b: s(b).repartition(Repartitioned(name="by")),
    "Repartitioned.key_serde": lambda b: s(b).repartition(Repartitioned(key_serde=TEXT)),
    "Repartitioned.value_serde": lambda b: s(b).repartition(Repartitioned(value_serde=JSON)),
    "Repartitioned.partitions": lambda b: s(b).repartition(Repartitioned(partitions=3)),
    "Repartitioned.partitioner": lambda b: s(b).repartition(
        Repartitioned(partitions=2, partitioner=lambda k, v, count: v % count)
    ),
    "Joined.name": lambda b: s(b).join(t(b), left, Joined(name="joined")),
    "Joined.key_serde": lambda b: s(b).join(t(b), left, Joined(key_serde=TEXT)),
    "Joined.value_serde": lambda b: s(b).join(t(b), left, Joined(value_serde=JSON)),
    "Joined.other_value_serde": lambda b: s(b).join(t(b), left, Joined(other_value_serde=JSON)),
    "Joined.grace": lambda b: s(b).join(
        b.table("b", materialized=Materialized.versioned("v", history=9)), left, Joined(grace=1)
    ),
    "StreamJoined.name": lambda b: s(b).join(b.stream("b"), left, NEAR, StreamJoined(name="j")),
    "StreamJoined.key_serde": lambda b: s(b).join(
        b.stream("b"), left, NEAR, StreamJoined(key_serde=TEXT)
    ),
    "StreamJoined.value_serde": lambda b: s(b).join(
        b.stream("b"), left, NEAR, StreamJoined(value_serde=JSON)
    ),
    "StreamJoined.other_value_serde": lambda b: s(b).join(
        b.stream("b"), left, NEAR, StreamJoined(other_value_serde=JSON)
    ),
    "StreamJoined.store_name": lambda b: s(b).join(
        b.stream("b"), left, NEAR, StreamJoined(store_name="kept")
    ),
    "TableJoined.name": lambda b: refers(b, TableJoined(name="by")),
    "TableJoined.key_serde": lambda b: refers(b, TableJoined(key_serde=TEXT)),
    "TableJoined.other_key_serde": lambda b: refers(b, TableJoined(other_key_serde=TEXT)),
    "TableJoined.partitioner": lambda b: refers(b, TableJoined(partitioner=first)),
    "TableJoined.other_partitioner": lambda b: refers(b, TableJoined(other_partitioner=first)),
    "Branched.name": OPERATORS["BranchedKStream.branch"],
    "Branched.chain": lambda b: (
        s(b)
        .split()
        .branch(lambda k, v: True, Branched.with_function(lambda one: one, "x"))
        .no_default_branch()
    ),
    "Materialized.name": lambda b: g(b).count(Materialized(name="counts")),
    "Materialized.key_serde": lambda b: g(b).count(Materialized(key_serde=TEXT)),
    "Materialized.value_serde": lambda b: g(b).count(Materialized(value_serde=JSON)),
    "Materialized.retention": lambda b: w(b).count(Materialized(retention=9_000)),
    "Materialized.history": lambda b: b.table("a", materialized=Materialized(history=9_000)),
    "Materialized.changelog": lambda b: g(b).count(Materialized(name="counts", changelog=True)),
    "Materialized.caching": lambda b: g(b).count(Materialized(caching=True)),
}
REFUSED: dict[str, tuple[Program, str]] = {
    "Consumed.offset_reset": (
        lambda b: b.stream("a", Consumed(offset_reset="latest")),
        "remove offset_reset",
    ),
    "Produced.partitioner": (
        lambda b: (
            s(b).to(lambda k, v: "x", Produced(partitioner=lambda k, v, count: 0)),
            b.stream("b"),
        )[1],
        "name the topic",
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_run(name: str) -> None:
    topics = run(OPTIONS[name])
    # of a foreign-key join the first batch gives the questions
    asks = [topic for topic in topics if "SUBSCRIPTION" in topic or "-subscription-" in topic]
    assert "out" in topics or (name.startswith("TableJoined") and asks)


@pytest.mark.parametrize("name", REFUSED)
def test_options_that_cannot_run_are_refused_when_the_program_is_planned(name: str) -> None:
    program, reason = REFUSED[name]
    with pytest.raises(TopologyError, match=reason) as refusal:
        run(program)
    assert "test_operators.py" in str(refusal.value)


def test_no_option_is_left_out() -> None:
    kinds = (
        Branched, Consumed, Grouped, Joined, Materialized, Produced, Repartitioned, StreamJoined,
        TableJoined,
    )  # fmt: skip
    there = {f"{kind.__name__}.{one.name}" for kind in kinds for one in fields(kind)}
    assert there == {*OPTIONS, *REFUSED}


@pytest.mark.parametrize(
    "program",
    [
        lambda b, lock: s(b).map_values(lambda v: (lock, v)),
        lambda b, lock: g(b).aggregate(lambda: lock, fold),
        lambda b, lock: s(b).process(lambda: lock),
        lambda b, lock: b.stream("a", Consumed(timestamp_extractor=lambda *_: lock)),
    ],
    ids=["function", "initializer", "supplier", "extractor"],
)
def test_what_cannot_be_sent_to_workers_is_refused_at_the_users_line(
    program: Any, tmp_path: Path
) -> None:
    address = f"file:{tmp_path}/topics"
    with Log(address) as log:
        log.create_topic("a")
    lock = threading.Lock()
    topology = built(lambda b: program(b, lock))
    with pytest.raises(TopologyError, match="cannot be sent to Spark's workers") as refusal:
        Streams(topology, application_id="app", log=address).planned()
    assert "test_operators.py" in str(refusal.value)
