"""What a program cannot mean is refused when it is built, at the user's line."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from thulawa.errors import TopologyError
from thulawa.streams import (
    AsyncProcessor,
    Consumed,
    JoinWindows,
    Processor,
    Produced,
    Serdes,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
)
from thulawa.topology.nodes import Stateless


async def wait(*values: Any) -> Any:
    """Return what it was given."""
    return values


class Waits(AsyncProcessor[Any, Any, Any, Any]):
    async def process(self, record: Any) -> None:
        """Do nothing."""


class Mixed(Processor[Any, Any, Any, Any]):
    async def process(self, record: Any) -> None:  # type: ignore[override]
        """Do nothing, and be awaited by nobody."""


class Works(Processor[Any, Any, Any, Any]):
    def process(self, record: Any) -> None:
        """Do nothing."""


one: Any = lambda only: 1  # noqa: E731 a function of one argument


WRONG: dict[str, tuple[Callable[[Any, Any, Any], object], str]] = {
    "filter by value alone": (
        lambda s, t, b: s.filter(lambda v: v),
        r"\(key, value\).*not of \(v\)",
    ),
    "mapper with a key": (lambda s, t, b: s.map_values(lambda k, v: v), "with_key=True"),
    "table mapper": (lambda s, t, b: t.map_values(lambda: 1), r"of \(value\)"),
    "branch": (lambda s, t, b: s.branch(lambda v: v), "branch needs a function of"),
    "aggregator": (
        lambda s, t, b: s.group_by_key().aggregate(lambda: 0, lambda k, v: v),
        r"aggregator needs a function of \(key, value, aggregate\)",
    ),
    "initializer": (
        lambda s, t, b: s.group_by_key().aggregate(lambda k: 0, lambda k, v, a: a),
        r"initializer needs a function of \(\)",
    ),
    "reducer": (lambda s, t, b: s.group_by_key().reduce(lambda v: v), "reduce needs a function of"),
    "subtractor": (
        lambda s, t, b: t.group_by(lambda k, v: (v, k)).reduce(max, lambda v: v),
        "subtractor needs a function of",
    ),
    "grouping of a table": (lambda s, t, b: t.group_by(lambda v: v), r"\(key, value\)"),
    "joiner": (lambda s, t, b: s.join(t, lambda v: v), "joiner needs a function of"),
    "joiner of tables": (lambda s, t, b: t.join(b.table("u"), lambda k, v, w: v), "joiner"),
    "joiner that is none": (lambda s, t, b: s.join(t, "name"), "not 'name'"),
    "foreign key": (
        lambda s, t, b: t.join(b.table("u"), max, foreign_key=lambda k, v: v),
        r"foreign key needs a function of \(value\)",
    ),
    "extractor": (
        lambda s, t, b: b.stream("x", Consumed(timestamp_extractor=one)),
        "timestamp, key, value, partition_time",
    ),
    "partitioner": (
        lambda s, t, b: s.to("o", Produced(partitioner=one)),
        r"\(key, value, partitions\)",
    ),
    "topic": (lambda s, t, b: s.to(lambda: "o"), "a topic by record needs a function of"),
    "topic that is a number": (lambda s, t, b: s.to(5), "not 5"),
    "async function": (lambda s, t, b: s.map_values_async(lambda k, v: v), r"\(value\)"),
    "async function without its resource": (
        lambda s, t, b: s.map_async(lambda k, v: v, resource=nullcontext),
        r"\(key, value, resource\)",
    ),
    "processor that is made": (lambda s, t, b: s.process(Works()), "a supplier is a processor"),
    "async processor": (lambda s, t, b: s.process(Waits), "process_async"),
    "processor that waits": (lambda s, t, b: s.process(Mixed), "make it an AsyncProcessor"),
    "mapper that waits": (lambda s, t, b: s.map_values(wait), "does not accept async"),
    "joiner that waits": (lambda s, t, b: s.join(t, wait), "does not accept async"),
    "no windows": (lambda s, t, b: s.join(b.stream("u"), max), "needs JoinWindows"),
    "windows with a table": (lambda s, t, b: s.join(t, max, JoinWindows.of(1)), "are a Joined"),
    "join with a group": (lambda s, t, b: s.join(s.group_by_key(), max), "not a KGroupedStream"),
    "table with a stream": (lambda s, t, b: t.join(s, max), "joins a KTable, not a KStream"),
    "outer with a table": (lambda s, t, b: s.outer_join(t, max, JoinWindows.of(1)), "not a KTable"),
    "merge": (lambda s, t, b: s.merge(t), "not a KTable"),
    "global table without its key": (
        lambda s, t, b: s.join(b.global_table("g"), max),
        "returns the table's key",
    ),
    "cogroup": (
        lambda s, t, b: s.group_by_key().cogroup(lambda k, v, a: a).cogroup(s, max),
        "group it first",
    ),
    "windows": (lambda s, t, b: s.group_by_key().windowed_by(JoinWindows.of(1)), "not JoinWindows"),
    "windows of a cogroup": (
        lambda s, t, b: s.group_by_key().cogroup(lambda k, v, a: a).windowed_by("5 s"),
        "not '5 s'",
    ),
    "suppress": (lambda s, t, b: t.suppress("5 s"), "needs a Suppressed"),
    "suppress without windows": (
        lambda s, t, b: s.group_by_key().count().suppress(Suppressed.until_window_closes()),
        "needs a windowed",
    ),
    "serde": (lambda s, t, b: Consumed.with_(str, None), "a serde is a Serde"),  # type: ignore[arg-type]
    "serde for options": (lambda s, t, b: b.stream("x", Serdes.string()), "are a Consumed"),
    "options of a sink": (lambda s, t, b: b.stream("x", Produced()), "are a Consumed"),
    "store": (lambda s, t, b: s.group_by_key().count("counts"), "are a Materialized, not a str"),
    "windowed store": (
        lambda s, t, b: s.group_by_key().windowed_by(TimeWindows.of(1)).count("counts"),
        "are a Materialized, not a str",
    ),
    "name": (lambda s, t, b: s.filter(max, named=5), "a name is a str"),
}


@pytest.mark.parametrize(("program", "reason"), WRONG.values(), ids=WRONG)
def test_what_cannot_work_is_refused_at_the_users_line(program: Any, reason: str) -> None:
    builder = StreamsBuilder()
    with pytest.raises(TopologyError, match=reason) as caught:
        program(builder.stream("in"), builder.table("t"), builder)
    assert caught.value.where is not None
    assert caught.value.where.startswith(__file__)


def test_functions_that_can_be_called_are_taken() -> None:
    builder: Any = StreamsBuilder()
    stream = builder.stream("in").filter(max).map_values(len).map_values(lambda v, unit=1: v * unit)
    stream.map_values(lambda *parts: parts, with_key=True).map_values(int).map_values("{}".format)
    stream.to(lambda key, value, metadata: metadata.topic)


def test_an_edit_is_checked_like_a_program() -> None:
    builder = StreamsBuilder()
    builder.stream("in").map_values(str, named="text").to("out")
    topology = builder.build()
    with pytest.raises(TopologyError, match="map_values needs a function"):
        topology.replace("text", function=lambda k, v: v)
    with pytest.raises(TopologyError, match="filter needs a function"):
        topology.insert_after("text", Stateless(name="few", operation="filter"))
