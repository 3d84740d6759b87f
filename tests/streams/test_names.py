"""Names: stable, guarded, and reported at the user's line."""

import warnings
from typing import Any

import pytest

from thulawa.errors import (
    ConfigurationError,
    TopologyError,
)
from thulawa.streams import (
    Grouped,
    JoinWindows,
    Materialized,
    Repartitioned,
    StreamJoined,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
)

UNNAMED: dict[str, Any] = {
    "count": lambda b: b.stream("in").group_by_key().count(),
    "repartition": lambda b: b.stream("in").repartition(),
    "window": lambda b: b.stream("in").group_by_key().windowed_by(TimeWindows.of(1)).count(),
    "join": lambda b: b.stream("in").join(b.stream("other"), max, JoinWindows.of(1)),
    "table join": lambda b: b.table("in").join(b.table("other"), max),
    "table grouping": lambda b: b.table("in").group_by(lambda k, v: (v, k)).count(),
    "foreign key": lambda b: b.table("in").join(b.table("other"), max, foreign_key=str),
}
NAMED: dict[str, Any] = {
    "count": lambda b: b.stream("in").group_by_key().count(Materialized.as_("c")),
    "repartition": lambda b: b.stream("in").repartition(Repartitioned.as_("r")),
    "grouping": lambda b: (
        b.stream("in")
        .group_by(lambda k, v: v, Grouped.as_("by-value"))
        .count(Materialized.as_("c"))
    ),
    "join": lambda b: b.stream("in").join(
        b.stream("other"), max, JoinWindows.of(1), StreamJoined(store_name="j")
    ),
    "nothing kept": lambda b: b.table("in").filter(max).to_stream().to("out"),
    "suppress": lambda b: b.table("in", materialized=Materialized.as_("t")).suppress(
        Suppressed.until_time_limit(1).with_name("s")
    ),
}


@pytest.mark.parametrize("program", UNNAMED.values(), ids=UNNAMED)
def test_a_generated_name_is_refused_where_names_must_be_explicit(program: Any) -> None:
    program(StreamsBuilder())
    with pytest.raises(TopologyError, match="generated name") as caught:
        program(StreamsBuilder(explicit_names="error"))
    assert __file__ in str(caught.value)
    with pytest.warns(UserWarning, match="generated name"):
        program(StreamsBuilder(explicit_names="warn"))


@pytest.mark.parametrize("program", NAMED.values(), ids=NAMED)
def test_what_has_a_name_is_not_objected_to(program: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program(StreamsBuilder(explicit_names="error"))


@pytest.mark.parametrize("program", UNNAMED.values(), ids=UNNAMED)
def test_the_same_program_has_the_same_names(program: Any) -> None:
    one, other = StreamsBuilder(), StreamsBuilder()
    program(one)
    program(other)
    assert one.build().describe() == other.build().describe()


def test_a_built_topology_does_not_change_any_more() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in")
    stream.to("a")
    before = builder.build()
    text = before.describe()
    stream.group_by_key().count()
    assert before.describe() == text != builder.build().describe()


def test_one_topic_read_twice_is_one_source() -> None:
    builder = StreamsBuilder()
    builder.stream("in").to("a")
    builder.stream("in").to("b")
    topology = builder.build()
    assert [source.topics for group in topology.subtopologies() for source in group.sources] == [
        ("in",)
    ]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda b: b.stream([]), "at least one topic"),
        (lambda b: b.stream("in").filter(None), "needs a function"),
        (lambda b: b.table("in").map_values(3), "needs a function"),
        (lambda b: b.stream("in").join(b.stream("o"), max, None), "needs JoinWindows"),
        (lambda b: b.stream("in").join("other", max), "not a str"),
        (lambda b: b.stream("in").group_by_key().windowed_by(3), "windowed_by needs"),
        (lambda b: b.table("in").suppress(Suppressed.until_window_closes()), "windowed"),
        (
            lambda b: (
                b.stream("in").group_by_key().count().suppress(Suppressed.until_window_closes())
            ),
            "windowed",
        ),
        (lambda b: b.stream("in").process(object, "nowhere"), "no store 'nowhere'"),
        (lambda b: b.stream("in").merge(StreamsBuilder().stream("x")), "one StreamsBuilder"),
        (
            lambda b: (
                b.stream("in")
                .group_by_key()
                .windowed_by(TimeWindows.of(10))
                .count(Materialized.as_("c").with_retention(5))
            ),
            "a retention of at least 10 ms",
        ),
        (lambda b: TimeWindows.of(10).advance_by(11), "from 1 to the window size"),
        (lambda b: TimeWindows.of(0), "at least 1 ms"),
        (lambda b: TimeWindows.of("ten"), "not a duration"),
        (lambda b: Suppressed.until_window_closes().emit_early_when_full(), "final and early"),
        (lambda b: StreamsBuilder().build(), "empty"),
        (lambda b: type(b)(explicit_names="maybe"), "is not supported"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_built(build: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build(StreamsBuilder())
