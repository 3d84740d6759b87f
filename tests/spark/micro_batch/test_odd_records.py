"""Records, and results of functions, that cannot be written: handlers that resume answer for each.

The programs run through the code of Spark's workers, without Spark. Each test feeds a record that
is wrong in one way and then a good one, which must come through.
"""

from random import Random
from typing import Any

import pytest

from tests.spark.dry import DryQuery, Input
from thulawa.brokers.port import LARGEST_RECORD
from thulawa.core.records import Headers
from thulawa.runtime.handlers import DeadLetterQueue, Handlers
from thulawa.runtime.output_encoder import OutputEncoder, record_size
from thulawa.runtime.task_options import TaskOptions
from thulawa.streams import (
    Grouped,
    Processor,
    ProcessorContext,
    Record,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
)
from thulawa.topology.topology import Topology

_queue = DeadLetterQueue("dead")
OPTIONS = TaskOptions(
    commit="batch",
    max_ahead="1 day",
    handlers=Handlers(deserialization=_queue, processing=_queue, production=_queue),
)


def run(builder: StreamsBuilder | Topology, *records: Input) -> list[dict[str, Any]]:
    """Run a program with a batch for each record; inner topics are read with the next one."""
    topology = builder.build() if isinstance(builder, StreamsBuilder) else builder
    query = DryQuery(topology, {"in": 1}, OPTIONS)
    rows = []
    for record in records:
        left = query.batch({("in", 0): [record]})
        inner = [row for row in left if row["topic"].startswith("app-")]
        rows += [row for row in left if row not in inner]
        for place, row in enumerate(inner):
            one = Input(place, record.timestamp, row["key"], row["value"], row["headers"])
            rows += query.batch({(row["topic"], 0): [one]})
    return rows


def topics(rows: list[dict[str, Any]]) -> list[str]:
    return [row["topic"] for row in rows]


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def refuse(value: Any) -> Any:
    if value == "unreadable":
        raise Unreadable
    if value != "good":
        raise ValueError(f"not good: {value}")
    return value


async def refuse_later(value: Any) -> Any:
    return refuse(value)


@pytest.mark.parametrize("operator", ["map_values", "map_values_async", "aggregate"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b'"\\ud800"', rb"not good: \ud800"),
        (b'"unreadable"', b"Unreadable: its message cannot be read"),
    ],
)
def test_whatever_an_error_says_its_record_is_set_aside(
    operator: str, value: bytes, message: bytes
) -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in")
    match operator:
        case "map_values":
            stream.map_values(refuse).to("out")
        case "map_values_async":
            stream.map_values_async(refuse_later).to("out")
        case "aggregate":
            counted = stream.group_by_key().aggregate(str, lambda _, value, __: refuse(value))
            counted.to_stream().to("out")
    rows = run(builder, Input(0, 1, b"k", value), Input(1, 2, b"k", b'"good"'))
    assert topics(rows) == ["dead", "out"]
    headers = {one["key"]: one["value"] for one in rows[0]["headers"]}
    assert headers["__streams.errors.message"] == message


@pytest.mark.parametrize("timestamp", [-1, -(2**63), 2**62, 2**63 - 1])
def test_a_record_is_set_aside_whatever_its_timestamp(timestamp: int) -> None:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    rows = run(builder, Input(0, timestamp, b"k", b"{"), Input(1, 2, b"k", b"1"))
    assert topics(rows) == ["dead", "out"]
    assert (rows[0]["key"], rows[0]["value"]) == (b"k", b"{")


class Forwarding(Processor[Any, Any, Any, Any]):
    """Forwards records, or sends them, at the time and with the headers of their value."""

    def init(self, context: ProcessorContext[Any, Any]) -> None:
        self._context = context

    def process(self, record: Record[Any, Any]) -> None:
        time, headers, send = record.value
        if send:
            self._context.send("out", b"k", b"1", time, _headers(headers))
        else:
            changed = record.with_timestamp(time).with_headers(_headers(headers))
            self._context.forward(changed.with_value(1))


def _headers(names: Any) -> Headers:
    if isinstance(names, str):
        return names  # type: ignore[return-value] # a wrong program
    return tuple((name, b"v" if name else "v") for name in names)  # type: ignore[misc]


@pytest.mark.parametrize("send", [b"true", b"false"])
@pytest.mark.parametrize("repartitioned", [False, True])
@pytest.mark.parametrize(
    "wrong",
    [
        b'[-1, ["a"]',
        b"[9223372036854775807, []",
        b"[99999999999999999999, []",
        b'["7", []',
        b'[7, ["\\ud800"]',
        b"[7, [5]",
        b'[7, [""]',  # a value that is text
        b'[7, "no pairs"',
    ],
)
def test_a_processor_that_forwards_what_no_topic_takes_fails_with_its_record(
    wrong: bytes, send: bytes, *, repartitioned: bool
) -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in").process(Forwarding)
    if repartitioned:
        stream.group_by(lambda key, value: "k", Grouped(name="moved")).count().to_stream().to("out")
    else:
        stream.to("out")
    bad = Input(0, 1, b"k", wrong + b", " + send + b"]")
    rows = run(builder, bad, Input(1, 2, b"k", b'[7, ["a"], ' + send + b"]"))
    assert topics(rows) == ["dead", "out"]
    assert rows[0]["value"] == bad.value


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(3_000):
        value = [value]
    return value


@pytest.mark.parametrize("make", [deep, lambda: "\ud800", lambda: {"\ud800"}, object])
def test_an_output_whose_record_is_not_known_any_more_is_set_aside(make: Any) -> None:
    builder = StreamsBuilder()
    counted = builder.stream("in").group_by_key().windowed_by(TimeWindows.of("1 s")).count()
    closed = counted.suppress(Suppressed.until_window_closes()).to_stream()
    closed.map_values(lambda count: make()).to("out")
    rows = run(builder, Input(0, 0, b"k", b"1"), Input(1, 5_000, b"k", b"1"))
    assert topics(rows) == ["dead"]


def test_a_dead_letter_with_many_headers_is_cut_to_what_its_topic_takes() -> None:
    limit = 1_000_000
    encoder = OutputEncoder(OPTIONS, lambda *_: None, lambda topic: limit)
    headers = tuple((f"h{number}", bytes(60_000)) for number in range(40))
    error = (("__streams.errors.exception", b"ValueError"), ("__streams.errors.offset", b"7"))
    letter = encoder.encode(None, "dead", b"k", bytes(50_000), 0, (*headers, *error))
    assert letter is not None
    assert record_size(*letter) <= limit
    kept = dict(letter.headers)
    assert kept["__streams.errors.exception"] == b"ValueError"
    assert kept["thulawa.errors.size"] == b"50000"


@pytest.mark.parametrize("inner", [False, True])
def test_an_output_that_is_larger_than_the_log_takes_goes_to_a_handler(*, inner: bool) -> None:
    builder = StreamsBuilder()

    def grow(value: int) -> str:
        return Random(value).randbytes(value * LARGEST_RECORD // 4).hex()  # not to be compressed

    stream: Any = builder.stream("in").map_values(grow)
    if inner:  # a topic: what the function names is not known
        by_name = stream.group_by(lambda key, value: __name__, Grouped(name="moved"))
        stream = by_name.reduce(lambda _, value: value).to_stream().map_values(len)
    stream.to("out")
    rows = run(builder, Input(0, 1, b"k", b"6"), Input(1, 2, b"k", b"1"))
    assert topics(rows) == ["dead", "out"]
