"""Blocks of records give what the same records give one by one."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.spark.dry import DryQuery, Input
from thulawa.errors import ThulawaError
from thulawa.runtime.blocks import Block
from thulawa.runtime.graph import Graph
from thulawa.runtime.handlers import DeadLetterQueue, Handlers
from thulawa.runtime.task_options import TaskOptions
from thulawa.streams import StreamsBuilder

LETTERS = DeadLetterQueue("dead")
SKIPPING = Handlers(deserialization=LETTERS, processing=LETTERS, production=LETTERS)
Program = Callable[[StreamsBuilder], Any]


def counted(builder: StreamsBuilder) -> None:
    builder.stream("in").group_by_key().count().to_stream().to("out")


def collected(builder: StreamsBuilder) -> None:
    """Every result is the list of before, changed: each must leave as it was when it was made."""

    def add(_: Any, value: Any, found: list[Any]) -> list[Any]:
        found.append(value)
        return found

    builder.stream("in").group_by_key().aggregate(list, add).to_stream().to("out")


def refused_here_and_there(builder: StreamsBuilder) -> None:
    """Functions before, in and after the fold fail, and one gives what cannot be written."""

    def unless(bad: int, give: Any = None) -> Callable[[Any], Any]:
        def check(value: Any) -> Any:
            if value == bad:
                return give or 1 // 0
            return value

        return check

    stream = builder.stream("in").filter(lambda _, value: value != 1).map_values(unless(2))
    sums = stream.group_by_key().reduce(lambda one, other: unless(5)(one) + unless(3)(other))
    sums.to_stream().map_values(unless(7)).map_values(unless(9, give={1})).to("out")


def removed(builder: StreamsBuilder) -> None:
    """Remove a key, as a fold that gives nothing does."""

    def fold(_: Any, value: Any, found: Any) -> Any:
        return None if value == 4 else found + 1

    builder.stream("in").group_by_key().aggregate(int, fold).to_stream().to("out")


def lists(*parts: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.tuples(*parts), min_size=1, max_size=40)


TIMES, KEYS = st.integers(0, 30), st.sampled_from([b"a", b"b", b"c", None])
VALUES = st.sampled_from([*(b"%d" % n for n in range(10)), None])
READABLE = lists(TIMES, KEYS, VALUES)
# one that cannot be read, and a block is taken record by record
UNREADABLE = lists(
    TIMES | st.sampled_from([-1, 4_000_000_000_000]),
    KEYS | st.just(b"\xff"),
    VALUES | st.sampled_from([b"null", b'"x"', b"01", b"1,2"]),
)


def outcome(program: Program, batches: list[list[Any]], options: TaskOptions) -> Any:
    """Give what leaves, by topic, and how it ended."""
    builder = StreamsBuilder()
    program(builder)
    query = DryQuery(builder.build(), {"in": 1}, options)
    found: dict[str, list[Any]] = {}
    ended = _ended(query, batches, found)
    found.get("dead", []).sort(key=repr)  # a block's go node by node
    return found, ended


def _ended(query: DryQuery, batches: list[list[Any]], found: dict[str, list[Any]]) -> str:
    offset = 0
    for batch in batches:
        rows = [Input(offset + n, *record) for n, record in enumerate(batch)]
        offset += len(rows)
        try:
            left = query.batch({("in", 0): rows})
        except ThulawaError:
            return "failed"  # of several bad records a block may name another one
        for row in left:
            headers = [(h["key"], h["value"]) for h in row["headers"] or ()]
            known = [one for one in headers if "stacktrace" not in one[0]]
            record = row["key"], row["value"], row["timestamp"], known
            found.setdefault(row["topic"], []).append(record)
    return "ended"


@pytest.mark.parametrize("program", [counted, collected, refused_here_and_there, removed])
@pytest.mark.parametrize(
    "options",
    [
        TaskOptions(commit="batch", handlers=SKIPPING, on_bad_timestamp="skip", max_ahead="1 day"),
        TaskOptions(commit="batch", on_bad_timestamp="partition_time"),
    ],
    ids=["skipping", "failing"],
)
@settings(max_examples=40, deadline=None)
@example([[(0, b"a", b"0"), (0, b"a", b"3"), (0, b"a", b"2")], [(-1, b"\xff", b"0")]])
@given(batches=st.lists(READABLE | UNREADABLE, min_size=1, max_size=3))
def test_they_give_what_records_give_one_by_one(
    program: Program, options: TaskOptions, batches: list[list[Any]]
) -> None:
    blocks = outcome(program, batches, options)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Graph, "block_entry", lambda *_: None)
        one_by_one = outcome(program, batches, options)
    assert blocks == one_by_one


def test_a_count_goes_by_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    entry = Graph.block_entry

    def watched(graph: Graph, source: Any) -> Any:
        function = entry(graph, source)
        assert function is not None

        def watch(block: Block) -> None:
            taken.append(len(block.offsets))
            function(block)

        return watch

    monkeypatch.setattr(Graph, "block_entry", watched)
    batch = [(n, b"a", b"1") for n in range(5)]
    found, _ = outcome(counted, [batch], TaskOptions(commit="batch"))
    assert taken == [5]
    assert [value for _, value, *_ in found["out"]] == [b"1", b"2", b"3", b"4", b"5"]


def two_ways(builder: StreamsBuilder) -> None:
    stream = builder.stream("in")
    stream.group_by_key().count().to_stream().to("out")
    stream.to("out")


def test_where_the_way_divides_records_keep_their_order() -> None:
    batch = [(0, b"a", b"7"), (1, b"a", b"8")]
    found, _ = outcome(two_ways, [batch], TaskOptions(commit="batch"))
    assert [value for _, value, *_ in found["out"]] == [b"1", b"7", b"2", b"8"]
