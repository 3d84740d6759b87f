"""Every operator that repartitions gives with four partitions what it gives with one.

The programs run through the code of Spark's workers, without Spark, batch by batch, with a restart
after each. Keys are written by every kind of serde.
"""

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.spark.dry import DryQuery, Input
from thulawa.core.partitioning import partition_of
from thulawa.core.serdes import Serde, Serdes
from thulawa.errors import (
    SerializationError,
    TopologyError,
)
from thulawa.runtime.handlers import Handlers, log_and_continue
from thulawa.runtime.task_options import TaskOptions
from thulawa.streams import (
    Consumed,
    Grouped,
    Joined,
    JoinWindows,
    Materialized,
    Processor,
    Produced,
    Repartitioned,
    StreamJoined,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
)

ROWS = 20
_AVRO = """{"type": "record", "name": "Id", "fields": [
    {"name": "shop", "type": "string"}, {"name": "number", "type": "int"}]}"""


@dataclass(eq=False)
class Own:
    """A key that is no plain data, cannot be compared, and is found by its bytes alone."""

    number: int


_own: Serde[Own] = Serde("own", lambda own: b"%d" % own.number, lambda data: Own(int(data)))


@dataclass(frozen=True)
class Kind:
    """A kind of key: its serde, and the key of a number."""

    serde: Serde[Any] | None
    key: Callable[[int], Any]

    @property
    def written(self) -> Serde[Any]:
        return self.serde or Serdes.string()


KINDS = {
    "default": Kind(None, str),
    "text": Kind(Serdes.string(), "é{}".format),
    "bytes": Kind(Serdes.byte_array(), lambda n: b"%d" % n),
    "long": Kind(Serdes.long(), lambda n: n),
    "double": Kind(Serdes.double(), lambda n: n / 4),
    "json number": Kind(Serdes.json(), lambda n: n),
    "json list": Kind(Serdes.json(), lambda n: ["shop", n]),
    "json object": Kind(Serdes.json(), lambda n: {"shop": "s", "number": n}),
    "avro": Kind(Serdes.avro(_AVRO), lambda n: {"shop": "s", "number": n}),
    "own": Kind(_own, Own),
}


class Programs:
    """One program per operator, on a stream ``left`` and a table or stream ``right``."""

    def __init__(self, kind: Kind) -> None:
        self.builder = StreamsBuilder()
        self._kind = kind
        self._read: Consumed[Any, Any] = Consumed(key_serde=kind.serde)
        self._to = Produced(key_serde=kind.serde, value_serde=Serdes.json())

    def rekeyed(self) -> Any:
        """Return the left records by the number in their value."""
        key = self._kind.key
        return self.left().select_key(lambda _, value: key(value["to"]))

    def left(self) -> Any:
        return self.builder.stream("left", self._read)

    def right(self) -> Any:
        return self.builder.stream("right", self._read)

    def rows(self) -> Any:
        return self.builder.table("right", self._read)

    def grouped(self) -> Any:
        return self.rekeyed().group_by_key(Grouped(key_serde=self._kind.serde))

    def out(self, stream: Any) -> None:
        stream.to("out", self._to)

    # --- operators

    def group_by_count(self) -> None:
        self.out(self.grouped().count().to_stream().map_values(_same))

    def group_by_with_the_serde_of_the_store(self) -> None:
        key = self._kind.key
        grouped = self.left().group_by(lambda _, value: key(value["to"]))
        kept: Materialized[Any, Any] = Materialized(key_serde=self._kind.serde)
        self.out(grouped.count(kept).to_stream().map_values(_same))

    def two_steps(self) -> None:
        how: Grouped[Any, Any] = Grouped(key_serde=self._kind.serde, two_step=True)
        self.out(self.rekeyed().group_by_key(how).count().to_stream().map_values(_same))

    def windows(self) -> None:
        table = self.grouped().windowed_by(TimeWindows.of("1 hour")).count()
        self.out(table.to_stream(lambda windowed, _: windowed.key).map_values(_same))

    def to_table(self) -> None:
        kept: Materialized[Any, Any] = Materialized(name="rows", key_serde=self._kind.serde)
        self.out(self.rekeyed().to_table(kept).join(self.rows(), _pair).to_stream())

    def to_table_without_serde(self) -> None:
        self.out(self.rekeyed().to_table().join(self.rows(), _pair).to_stream())

    def stream_table_join(self) -> None:
        self.out(self.rekeyed().join(self.rows(), _pair))

    def stream_table_join_with_serde(self) -> None:
        self.out(self.rekeyed().join(self.rows(), _pair, Joined(key_serde=self._kind.serde)))

    def repartition_and_join(self) -> None:
        how: Repartitioned[Any, Any] = Repartitioned(key_serde=self._kind.serde)
        self.out(self.rekeyed().repartition(how).left_join(self.rows(), _pair))

    def repartition_without_serde_and_join(self) -> None:
        self.out(self.rekeyed().repartition().left_join(self.rows(), _pair))

    def stream_stream_join(self) -> None:
        self.out(self.rekeyed().join(self.right(), _pair, JoinWindows.of("1 hour")))

    def outer_join_of_two_rekeyed(self) -> None:
        key = self._kind.key
        other = self.right().select_key(lambda _, value: key(value["n"]))
        how: StreamJoined[Any, Any] = StreamJoined(key_serde=self._kind.serde)
        joined = self.rekeyed().outer_join(other, _pair, JoinWindows.of("1 hour"), how)
        self.out(joined)

    def table_group_by(self) -> None:
        key = self._kind.key
        left = self.builder.table("left", self._read)
        how: Grouped[Any, Any] = Grouped(key_serde=self._kind.serde)
        grouped = left.group_by(lambda _, value: (key(value["to"]), value["n"]), how)
        sums = grouped.reduce(lambda total, n: total + n, lambda total, n: total - n)
        self.out(sums.to_stream())

    def table_table_join_behind_a_grouping(self) -> None:
        key = self._kind.key
        counted = self.left().group_by(lambda _, value: key(value["to"])).count()
        self.out(counted.map_values(_same).join(self.rows(), _pair).to_stream())

    def cogroup(self) -> None:
        one = self.grouped().cogroup(lambda _, value, total: total + value["n"])
        both = one.cogroup(self.right().group_by_key(), lambda _, value, total: total + value["n"])
        self.out(both.aggregate(lambda: 0).to_stream())

    def foreign_key_join(self) -> None:
        left = self.builder.table("left", self._read)
        key = self._kind.key
        joined = left.join(self.rows(), _pair, foreign_key=lambda value: key(value["to"]))
        self.out(joined.to_stream())

    def foreign_key_left_join_with_text(self) -> None:
        left = self.builder.table("left", self._read)
        text: Consumed[Any, Any] = Consumed(key_serde=Serdes.string())
        rows = self.builder.table("names", text)
        joined = left.left_join(rows, _pair, foreign_key=lambda value: str(value["to"]))
        self.out(joined.to_stream())

    def process_and_join(self) -> None:
        key = self._kind.key

        class Rekeys(Processor[Any, Any, Any, Any]):
            def process(self, record: Any) -> None:
                self.context.forward(record.with_key(key(record.value["to"])))

        self.out(self.left().process(Rekeys).join(self.rows(), _pair))

    def async_map_and_join(self) -> None:
        key = self._kind.key

        async def rekeyed(_: Any, value: Any) -> Any:
            return key(value["to"]), value

        self.out(self.left().map_async(rekeyed).join(self.rows(), _pair))


def _same(count: int) -> int:
    return count


def _pair(one: Any, other: Any) -> Any:
    return [one and one["n"] if isinstance(one, dict) else one, other and other["n"]]


OPERATORS = [
    name
    for name, value in vars(Programs).items()
    if callable(value)
    and not name.startswith("_")
    and name not in ("rekeyed", "left", "right", "rows", "grouped", "out")
]


def run(kind: Kind, program: Programs, partitions: int) -> dict[bytes, list[Any]]:
    """Run a program over two batches of the right side and two of the left; give what leaves."""
    topics = dict.fromkeys(("left", "right", "names"), partitions)
    query = DryQuery(program.builder.build(), topics)
    found: dict[bytes, list[Any]] = defaultdict(list)
    ends: dict[tuple[str, int], int] = defaultdict(int)
    keys = [kind.written.dumps(kind.key(n)) for n in range(ROWS)]
    left = [("left", keys[n], {"n": n, "to": n * 7 % ROWS}) for n in range(ROWS)]
    rows = [("right", keys[n], {"n": n}) for n in range(ROWS)]
    names = [("names", b"%d" % n, {"n": n}) for n in range(ROWS)]
    batches = [rows + names, left[:10], left[10:]]
    for batch in batches:
        inputs: dict[tuple[str, int], list[Input]] = {}
        for topic, key, value in batch:
            if topic in query.plan.topics:
                place = topic, partition_of(key, partitions)
                record = Input(ends[place], 1_000, key, json.dumps(value).encode())
                inputs.setdefault(place, []).append(record)
                ends[place] += 1
        _settle(query, inputs, ends, found)
        query.restart()
    return dict(found)


def _settle(query: DryQuery, inputs: Any, ends: Any, found: dict[bytes, list[Any]]) -> None:
    """Run a batch, then what it sent to topics that lead back, until nothing comes any more."""
    while inputs:
        rows = query.batch(inputs)
        inputs = {}
        for row in rows:
            if row["topic"] == "out":
                value = row["value"]
                found[row["key"]].append(None if value is None else json.loads(value))
                continue
            place = row["topic"], row["partition"]
            record = Input(ends[place], 1_000, row["key"], row["value"])
            inputs.setdefault(place, []).append(record)
            ends[place] += 1


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_four_partitions_give_what_one_gives(operator: str, kind: Kind) -> None:
    results = []
    for partitions in (1, 4):
        program = Programs(kind)
        getattr(program, operator)()
        results.append(run(kind, program, partitions))
    one, four = results
    assert len(one) == ROWS
    assert {key: values[-1] for key, values in four.items()} == {
        key: values[-1] for key, values in one.items()
    }
    assert {key: len(values) for key, values in four.items()} == {
        key: len(values) for key, values in one.items()
    }


@pytest.mark.parametrize("key", [lambda n: (n, "a"), lambda n: [n], lambda n: n / 2, lambda n: n])
@pytest.mark.parametrize("partitions", [1, 4])
def test_keys_without_a_serde_are_plain_data(key: Callable[[int], Any], partitions: int) -> None:
    builder = StreamsBuilder()
    counted = builder.stream("left").group_by(lambda _, value: key(value["to"] % 5)).count()
    counted.to_stream(lambda key, _: repr(key)).to("out")
    program = Programs(KINDS["default"])
    program.builder = builder
    found = run(KINDS["default"], program, partitions)
    assert found == {repr(key(n)).encode(): [1, 2, 3, 4] for n in range(5)}


class Price:
    """A value that is no plain data."""

    def __init__(self, cents: int) -> None:
        self.cents = cents


_price: Serde[Price] = Serde("price", lambda price: b"%d" % price.cents, lambda b: Price(int(b)))


@pytest.mark.parametrize("partitions", [1, 4])
def test_values_with_a_serde_go_through_repartitions_stores_and_buffers(partitions: int) -> None:
    builder = StreamsBuilder()
    numbers: Consumed[Any, Any] = Consumed(value_serde=_price)
    left, rows = builder.stream("left", numbers), builder.table("right", numbers)
    moved = left.select_key(lambda key, _: key).repartition(Repartitioned(value_serde=_price))
    kept: Materialized[Any, Any] = Materialized(value_serde=_price)
    dearest = moved.group_by_key().reduce(lambda a, b: max(a, b, key=_cents), kept)
    late = dearest.suppress(Suppressed.until_time_limit(0))
    joined = late.join(rows, lambda a, b: Price(a.cents + b.cents), foreign_key=lambda _: "k")
    joined.to_stream().to("out", Produced(value_serde=_price))
    query = DryQuery(builder.build(), dict.fromkeys(("left", "right"), partitions))
    found: dict[bytes, list[Any]] = defaultdict(list)
    ends: dict[tuple[str, int], int] = defaultdict(int)
    for topic, key, value in [("right", b"k", b"10"), ("left", b"a", b"5"), ("left", b"a", b"3")]:
        place = topic, partition_of(key, partitions)
        _settle(query, {place: [Input(ends[place], 1_000, key, value)]}, ends, found)
        ends[place] += 1
        query.restart()
    assert found[b"a"][-1] == 15


def _cents(price: Price) -> int:
    return price.cents


# --- what does not fit


@pytest.mark.parametrize("join", ["table", "stream", "tables"])
def test_sides_of_a_join_that_are_written_differently_are_refused(join: str) -> None:
    builder = StreamsBuilder()
    consumed: Consumed[Any, Any] = Consumed(key_serde=Serdes.long())
    match join:
        case "table":
            builder.stream("left").join(builder.table("right", consumed), _pair).to("out")
        case "stream":
            other = builder.stream("right", consumed)
            builder.stream("left").join(other, _pair, JoinWindows.of(5)).to("out")
        case "tables":
            builder.table("left").join(builder.table("right", consumed), _pair)
    with pytest.raises(TopologyError, match="'left' as text, 'right' as long") as caught:
        DryQuery(builder.build(), {"left": 4, "right": 4})
    assert "test_partitions.py" in str(caught.value)


def test_a_repartition_by_the_other_sides_serde_is_the_way_out() -> None:
    builder = StreamsBuilder()
    numbers: Consumed[Any, Any] = Consumed(key_serde=Serdes.long())
    moved: Repartitioned[Any, Any] = Repartitioned(key_serde=Serdes.long())
    stream = builder.stream("left").select_key(lambda key, value: int(key)).repartition(moved)
    stream.join(builder.table("right", numbers), _pair).to("out")
    DryQuery(builder.build(), {"left": 4, "right": 4})


@pytest.mark.parametrize("partitions", [1, 4])
def test_keys_that_the_table_cannot_have_go_to_the_handler(partitions: int) -> None:
    """Numbers never find rows under text: that is an error, not a record without a partner."""
    builder = StreamsBuilder()
    stream = builder.stream("left").select_key(lambda key, value: value["to"])
    stream.join(builder.table("right"), _pair).to("out")
    record = Input(0, 1_000, b"k", b'{"n": 1, "to": 7}')
    counts = dict.fromkeys(("left", "right"), partitions)
    with pytest.raises(SerializationError, match="of type int cannot be written as text"):
        DryQuery(builder.build(), counts).batch({("left", 0): [record]})
    options = TaskOptions(handlers=Handlers(processing=log_and_continue), commit="batch")
    assert DryQuery(builder.build(), counts, options).batch({("left", 0): [record]}) == []


@pytest.mark.parametrize("value", [b'"\\ud800"', b"[" * 400 + b"]" * 400], ids=["text", "depth"])
@pytest.mark.parametrize("operator", ["to_table", "repartition", "reduce", "loop"])
def test_one_odd_record_does_not_stop_an_application(operator: str, value: bytes) -> None:
    builder = StreamsBuilder()
    stream = builder.stream("left")
    match operator:
        case "to_table":
            stream.to_table(Materialized.as_("rows")).to_stream().map_values(type).to_table()
        case "repartition":
            stream.repartition().to_table(Materialized.as_("rows"))
        case "reduce":
            stream.group_by_key().reduce(lambda _, new: new)
        case "loop":
            right = builder.table("right")
            stream.to_table().join(right, _pair, foreign_key=lambda value: "k")
    options = TaskOptions(handlers=Handlers(processing=log_and_continue), commit="batch")
    query = DryQuery(builder.build(), {"left": 1, "right": 1}, options)
    for offset, data in enumerate([b"1", value, b"2"]):
        query.batch({("left", 0): [Input(offset, 1_000, b"k", data)]})
