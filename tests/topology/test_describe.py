"""describe() gives Kafka's text.

The texts in ``kafka/`` were written down from Kafka's documentation (``docs-*``) and from the
expectations in its own tests; only the text, no code.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from thulawa.streams import (
    Consumed,
    JoinWindows,
    Materialized,
    Processor,
    Produced,
    SessionWindows,
    StoreSpec,
    StreamJoined,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Topology,
)

TEXTS = Path(__file__).parent / "kafka"
PROGRAMS: dict[str, Any] = {}

Program = Callable[[StreamsBuilder], Any]


def program(name: str) -> Callable[[Program], Program]:
    def register(function: Program) -> Program:
        PROGRAMS[name] = function
        return function

    return register


def first(a: Any, *_: Any) -> Any:
    return a


@program("docs-pipeline")
def pipeline(builder: StreamsBuilder) -> None:
    stream = builder.stream("input").filter(lambda k, v: v != "invalid_txn")
    stream.map_values(lambda v: v[:5]).to("output")


@program("docs-pipeline-named")
def pipeline_named(builder: StreamsBuilder) -> None:
    consumed: Consumed[str, str] = Consumed.as_("Customer_transactions_input_topic")
    builder.stream("input", consumed).filter(
        lambda k, v: v != "invalid_txn", named="filter_out_invalid_txns"
    ).map_values(lambda v: v[:5], named="Map_values_to_first_6_characters").to(
        "output", Produced.as_("Mapped_transactions_output_topic")
    )


@program("docs-count")
def docs_count(builder: StreamsBuilder) -> None:
    builder.stream("input").group_by_key().count().to_stream().to("output")


@program("docs-count-filtered")
def docs_count_filtered(builder: StreamsBuilder) -> None:
    builder.stream("input").filter(first).group_by_key().count().to_stream().to("output")


@program("docs-count-named")
def docs_count_named(builder: StreamsBuilder) -> None:
    grouped = builder.stream("input").filter(first).group_by_key()
    grouped.count(Materialized.as_("Purchase_count_store")).to_stream().to("output")


@program("count")
def count(builder: StreamsBuilder) -> None:
    builder.stream("input-topic").group_by_key().count()


@program("count-anonymous")
def count_anonymous(builder: StreamsBuilder) -> None:
    builder.stream("input-topic").group_by_key().count(Materialized.with_(None, None))


@program("session-count-named")
def session_count(builder: StreamsBuilder) -> None:
    windows = builder.stream("input-topic").group_by_key().windowed_by(SessionWindows.of(1))
    windows.count(Materialized.as_("count-store"))


@program("table-count")
def table_count(builder: StreamsBuilder) -> None:
    builder.table("input-topic").group_by(lambda k, v: (None, None)).count()


@program("table-count-named")
def table_count_named(builder: StreamsBuilder) -> None:
    grouped = builder.table("input-topic").group_by(lambda k, v: (None, None))
    grouped.count(Materialized.as_("count-store"))


@program("table-filter")
def table_filter(builder: StreamsBuilder) -> None:
    builder.table("input-topic").filter(first)


@program("table-filter-named")
def table_filter_named(builder: StreamsBuilder) -> None:
    builder.table("input-topic").filter(first, Materialized.as_("store-name"))


@program("table-filter-anonymous")
def table_filter_anonymous(builder: StreamsBuilder) -> None:
    builder.table("input-topic").filter(first, Materialized.with_(None, None))


@program("table-map-values")
def table_map_values(builder: StreamsBuilder) -> None:
    builder.table("input-topic").map_values(first)


def stream_join(builder: StreamsBuilder, kind: str, joined: Any = None) -> None:
    one, two = builder.stream("input-topic1"), builder.stream("input-topic2")
    getattr(one, kind)(two, first, JoinWindows.of(100), joined)


for _kind in ("join", "left_join", "outer_join"):
    _name = f"stream-{_kind.replace('_', '-')}"
    PROGRAMS[_name] = lambda builder, kind=_kind: stream_join(builder, kind)
    PROGRAMS[f"{_name}-named"] = lambda builder, kind=_kind: stream_join(
        builder, kind, StreamJoined(store_name="custom-name")
    )


def suppressed(builder: StreamsBuilder, how: Suppressed) -> None:
    grouped = builder.stream("input").group_by(first)
    counts = grouped.windowed_by(SessionWindows.of(5, grace=5)).count(Materialized.as_("counts"))
    stream = counts.suppress(how).to_stream()
    stream.map(lambda k, v: (k, v)).to("output-suppressed")


PROGRAMS["suppress-named-final"] = lambda builder: suppressed(
    builder, Suppressed.until_window_closes().with_name("myname")
)
PROGRAMS["suppress-anonymous-final"] = lambda builder: suppressed(
    builder, Suppressed.until_window_closes()
)


@program("suppress-named-intermediate")
def suppress_named_intermediate(builder: StreamsBuilder) -> None:
    how = Suppressed.until_time_limit(1).with_name("asdf")
    builder.stream("input").group_by_key().count().suppress(how).to_stream().to("output")


@program("suppress-anonymous-intermediate")
def suppress_anonymous_intermediate(builder: StreamsBuilder) -> None:
    how = Suppressed.until_time_limit(1)
    builder.stream("input").group_by_key().count().suppress(how).to_stream().to("output")


@program("cogroup-repartition")
def cogroup_repartition(builder: StreamsBuilder) -> None:
    stream, two = builder.stream("one"), builder.stream("two")
    one = stream.map(lambda k, v: (v, k)).group_by_key()
    cogrouped = one.cogroup(first).cogroup(two.group_by_key(), first)
    table = cogrouped.aggregate(lambda: 0, Materialized.as_("store"), named="test")
    table.to_stream().to("output")


@program("cogroup-twice")
def cogroup_twice(builder: StreamsBuilder) -> None:
    stream, other = builder.stream("one"), builder.stream("two")
    one, two = stream.map(lambda k, v: (v, k)).group_by_key(), other.group_by_key()
    second = one.cogroup(first).cogroup(two, first).aggregate(lambda: 0)
    third = one.cogroup(first).cogroup(two, first).aggregate(lambda: 0)
    third.to_stream().to("output")
    second.to_stream().to("OUTPUT2")


@program("to-table-rekeyed")
def to_table_rekeyed(builder: StreamsBuilder) -> None:
    stream = builder.stream("input").map(lambda k, v: (v, k))
    stream.to_table(Materialized.with_(None, None)).to_stream().to("output")


@program("to-table-count")
def to_table_count(builder: StreamsBuilder) -> None:
    table = builder.stream("input").to_table()
    table.group_by(lambda k, v: (v, v)).count().to_stream().to("output")


@program("table-join")
def table_join(builder: StreamsBuilder) -> None:
    left, right = builder.stream("left").to_table(), builder.stream("right").to_table()
    left.join(right, first).to_stream().to("output")


@program("stream-table-join")
def stream_table_join(builder: StreamsBuilder) -> None:
    stream, table = builder.stream("streamTopic"), builder.stream("tableTopic").to_table()
    stream.join(table, first).to("output")


@program("foreign-key-join")
def foreign_key_join(builder: StreamsBuilder) -> None:
    left, right = builder.stream("input1").to_table(), builder.stream("input2").to_table()
    left.join(right, first, foreign_key=first).to_stream().to("output")


@pytest.mark.parametrize("name", sorted(path.stem for path in TEXTS.glob("*.txt")))
def test_the_description_is_kafkas(name: str) -> None:
    builder = StreamsBuilder()
    PROGRAMS[name](builder)
    assert builder.build().describe() == (TEXTS / f"{name}.txt").read_text(encoding="utf-8")


def test_a_global_table_is_described_as_a_global_store() -> None:
    builder = StreamsBuilder()
    rates: Any = builder.global_table("rates")
    stream: Any = builder.stream("orders")
    stream.join(rates, first, first).to("priced")
    assert builder.build().describe() == (
        "Topologies:\n"
        "   Sub-topology: 0 for global store (will not generate tasks)\n"
        "    Source: KSTREAM-SOURCE-0000000001 (topics: [rates])\n"
        "      --> KTABLE-SOURCE-0000000002\n"
        "    Processor: KTABLE-SOURCE-0000000002 (stores: [rates-STATE-STORE-0000000000])\n"
        "      --> none\n"
        "      <-- KSTREAM-SOURCE-0000000001\n"
        "  Sub-topology: 1\n"
        "    Source: KSTREAM-SOURCE-0000000003 (topics: [orders])\n"
        "      --> KSTREAM-LEFTJOIN-0000000004\n"
        "    Processor: KSTREAM-LEFTJOIN-0000000004 (stores: [])\n"
        "      --> KSTREAM-SINK-0000000005\n"
        "      <-- KSTREAM-SOURCE-0000000003\n"
        "    Sink: KSTREAM-SINK-0000000005 (topic: priced)\n"
        "      <-- KSTREAM-LEFTJOIN-0000000004\n\n"
    )


def test_processors_that_share_a_store_are_one_sub_topology() -> None:
    class Idle(Processor[Any, Any, Any, Any]):
        def process(self, record: Any) -> None: ...

    topology = Topology().add_source("a", "one").add_source("b", "two")
    topology.add_processor("p", Idle, "a").add_processor("q", Idle, "b")
    assert len(topology.subtopologies()) == 2
    topology.add_state_store(StoreSpec(name="shared"), "p", "q")
    assert len(topology.subtopologies()) == 1


def test_windows_of_a_time_count_keep_the_structure() -> None:
    builder = StreamsBuilder()
    grouped = builder.stream("input-topic").group_by_key()
    grouped.windowed_by(TimeWindows.of(1)).count(Materialized.with_(None, None))
    text = (TEXTS / "count-anonymous.txt").read_text(encoding="utf-8")
    assert builder.build().describe() == text


def test_a_joined_table_is_kept_when_a_store_was_asked_for_even_without_a_name() -> None:
    builder = StreamsBuilder()
    left, right = builder.table("left"), builder.table("right")
    left.join(right, first, Materialized.with_(None, None))
    merge = builder.build().nodes["KTABLE-MERGE-0000000007"]
    assert merge.parents == ("KTABLE-JOINTHIS-0000000008", "KTABLE-JOINOTHER-0000000009")
    assert merge.stores == ("KTABLE-MERGE-STATE-STORE-0000000006",)
