"""Two keys are one key where their serde writes the same bytes, in every store and operator."""

import json
import math
from typing import Any

import pytest

from thulawa.core.records import Window, Windowed
from thulawa.core.serdes import Serde, Serdes
from thulawa.errors import SerializationError
from thulawa.runtime.handlers import Handlers, log_and_continue
from thulawa.runtime.task_options import TaskOptions
from thulawa.streams import (
    Consumed,
    Grouped,
    JoinWindows,
    Materialized,
    Processor,
    Produced,
    SessionWindows,
    SlidingWindows,
    StoreSpec,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
)
from thulawa.testing import TopologyTestDriver

_AVRO = """{"type": "record", "name": "Id", "fields": [
    {"name": "shop", "type": "string"}, {"name": "number", "type": "int"}]}"""
_JSON: Produced[Any, Any] = Produced(key_serde=Serdes.json(), value_serde=Serdes.json())
# each pair is one key in the eyes of Python's ==, or cannot be looked up in a dict
_ODD = [1, True, 1.0, 0.0, -0.0, math.nan, [1], (1,), {"a": 1}, "1", b"1"]


def _counts(builder: StreamsBuilder, records: list[tuple[Any, Any]], **options: Any) -> list[Any]:
    with TopologyTestDriver(builder.build(), **options) as driver:
        topic = driver.create_input_topic("in")
        for key, value in records:
            topic.pipe_input(key, value)
        return driver.create_output_topic("out").read_key_values_to_list()


@pytest.mark.parametrize("partitions", [1, 4])
def test_keys_that_python_thinks_equal_are_what_their_bytes_say(partitions: int) -> None:
    builder = StreamsBuilder()
    counted = builder.stream("in").group_by(lambda key, value: _ODD[value]).count()
    counted.to_stream().map(lambda key, count: (repr(key), count)).to("out")
    numbers = list(range(len(_ODD))) * 3
    found = _counts(builder, [("k", number) for number in numbers], partitions=partitions)
    assert dict(found) == {repr(key): 3 for key in _ODD}
    assert len(found) == len(numbers)


def test_every_nan_is_one_key() -> None:
    builder = StreamsBuilder()
    counted = builder.stream("in").group_by(lambda key, value: float(value)).count()
    counted.to_stream().to_table(Materialized.as_("kept"))
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in").pipe_key_value_list([("k", "nan"), ("k", "-nan")] * 5)
        ((key, count),) = driver.get_key_value_store("kept").all()
    assert (math.isnan(key), count) == (True, 10)


def test_the_serde_decides_which_keys_are_one() -> None:
    builder = StreamsBuilder()
    grouped: Grouped[Any, Any] = Grouped(key_serde=Serdes.long())
    counted = builder.stream("in").group_by(lambda key, value: value, grouped).count()
    counted.to_stream().to("out", Produced(key_serde=Serdes.long(), value_serde=Serdes.long()))
    assert _counts(builder, [("k", 1), ("k", True)]) == [(1, 1), (1, 2)]


@pytest.mark.parametrize("serde", [Serdes.json(), Serdes.avro(_AVRO), None])
@pytest.mark.parametrize("partitions", [1, 4])
def test_records_are_keys(serde: Serde[Any] | None, partitions: int) -> None:
    builder = StreamsBuilder()
    grouped: Grouped[Any, Any] = Grouped(key_serde=serde)
    by_shop = builder.stream("in").group_by(lambda key, value: value["id"], grouped)
    by_shop.count().to_stream().map(lambda key, n: (json.dumps(key, sort_keys=True), n)).to("out")
    records = [("k", {"id": {"shop": s, "number": n}}) for s in "ab" for n in (1, 2)] * 2
    assert dict(_counts(builder, records, partitions=partitions)) == {
        json.dumps(value["id"], sort_keys=True): 2 for _, value in records
    }


def test_a_list_in_a_window_a_session_and_a_slide_is_a_key() -> None:
    for windows in (TimeWindows.of(10), SessionWindows.of(10), SlidingWindows.of(10)):
        builder = StreamsBuilder()
        grouped = builder.stream("in").group_by(lambda key, value: [value])
        table = grouped.windowed_by(windows).count()
        table.to_stream(lambda windowed, count: windowed.key).to("out", _JSON)
        records = [("k", "a"), ("k", "b"), ("k", "a")]
        found = [(key, n) for key, n in _counts(builder, records) if n is not None]
        assert found[-1] == (["a"], 2), windows


def test_windowed_keys_that_serialize_alike_join() -> None:
    """A window's end is not written: 10 s and 5 s windows of one start are one key."""
    builder = StreamsBuilder()
    stream = builder.stream("in").group_by_key()
    long = stream.windowed_by(TimeWindows.of(10)).count().filter(lambda k, n: True, _kept("long"))
    short = stream.windowed_by(TimeWindows.of(5)).count().filter(lambda k, n: True, _kept("short"))
    long.join(short, lambda a, b: (a, b)).to_stream(lambda w, n: w.window.start).to("out", _JSON)
    assert _counts(builder, [("a", 1)]) == [(0, [1, 1])]


def _kept(name: str) -> Materialized[Any, Any]:
    return Materialized.as_(name)


def test_suppressed_keys_are_found_by_their_bytes_and_leave_as_they_came() -> None:
    builder = StreamsBuilder()
    table = builder.stream("in").group_by(lambda key, value: [value]).count()
    table.suppress(Suppressed.until_time_limit(5)).to_stream().to("out", _JSON)
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in")
        for time, value in [(0, "a"), (1, "a"), (9, "b")]:
            topic.pipe_input("k", value, timestamp=time)
        assert driver.create_output_topic("out").read_key_values_to_list() == [(["a"], 2)]


def test_records_that_wait_for_a_join_are_found_by_the_bytes_of_their_keys() -> None:
    builder = StreamsBuilder()
    left, right = (
        builder.stream(name).select_key(lambda key, value: [value]) for name in ("left", "right")
    )
    left.outer_join(right, lambda a, b: (a, b), JoinWindows.of(5)).to("out", _JSON)
    with TopologyTestDriver(builder.build()) as driver:
        for topic, value, time in [
            ("left", "x", 0),
            ("right", "x", 1),
            ("left", "y", 2),
            ("left", "z", 90),
        ]:
            driver.create_input_topic(topic).pipe_input("k", value, timestamp=time)
        found = driver.create_output_topic("out").read_key_values_to_list()
    assert found == [(["x"], ["x", "x"]), (["y"], ["y", None])]


def test_cached_updates_are_those_of_one_key() -> None:
    builder = StreamsBuilder()
    table = builder.stream("in").group_by(lambda k, v: v).count(Materialized(caching=True))
    table.to_stream().map(lambda key, count: (repr(key), count)).to("out")
    options = TaskOptions(commit="batch")
    records = [("k", value) for value in (1, True, 1.0)]
    assert dict(_counts(builder, records, options=options)) == {"1": 1, "True": 1, "1.0": 1}


def test_two_steps_keep_keys_apart_and_together() -> None:
    builder = StreamsBuilder()
    grouped = builder.stream("in").group_by(lambda k, v: v, Grouped(two_step=True))
    grouped.count().to_stream().map(lambda key, count: (repr(key), count)).to("out")
    records = [("k", value) for value in (1, True, [1], [1])]
    assert dict(_counts(builder, records)) == {"1": 1, "True": 1, "[1]": 2}


def test_a_regrouped_table_moves_rows_between_keys_that_python_thinks_equal() -> None:
    builder = StreamsBuilder()
    grouped = builder.table("in").group_by(lambda key, value: (value, value))
    grouped.count().to_stream().map(lambda key, count: (repr(key), count)).to("out")
    assert _counts(builder, [("a", 1), ("a", True)]) == [("1", 1), ("1", 0), ("True", 1)]


def test_calls_of_an_async_node_are_ordered_by_the_bytes_of_their_keys() -> None:
    async def same(value: Any) -> Any:
        return value

    builder = StreamsBuilder()
    consumed: Consumed[Any, Any] = Consumed(key_serde=Serdes.json())
    stream = builder.stream("in", consumed)
    stream.map_values_async(same).to("out", Produced(key_serde=Serdes.json()))
    assert _counts(builder, [({"a": 1}, 1), ([2], 2)]) == [({"a": 1}, 1), ([2], 2)]


def test_a_processors_store_goes_by_bytes_and_gives_keys_back() -> None:
    builder = StreamsBuilder()
    builder.stream("in").group_by(lambda k, v: tuple(v) if v == [1] else v).count(_kept("seen"))
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in").pipe_key_value_list([("k", [2]), ("k", [1]), ("k", [2])])
        store = driver.get_key_value_store("seen")
        assert sorted(store.all(), key=repr) == [((1,), 1), ([2], 2)]
        assert (store.get([2]), store.get((2,))) == (2, None)


# --- what cannot be written


def test_a_key_that_its_serde_cannot_write_goes_to_the_handler_of_the_step() -> None:
    builder = StreamsBuilder()
    grouped: Grouped[Any, Any] = Grouped(name="by-number", key_serde=Serdes.long())
    builder.stream("in").group_by(lambda key, value: value, grouped).count().to_stream().to(
        "out", Produced(key_serde=Serdes.long(), value_serde=Serdes.long())
    )
    seen = []

    def note(error: Any, record: Any) -> Any:
        seen.append((record.node, record.topic, record.partition, record.offset))
        return log_and_continue(error, record)

    options = TaskOptions(handlers=Handlers(processing=note))
    assert _counts(builder, [("k", 1), ("k", "x"), ("k", 1)], options=options) == [(1, 1), (1, 2)]
    assert seen == [("by-number-repartition-sink", "in", 0, 1)]


def test_without_a_handler_the_error_says_where() -> None:
    builder = StreamsBuilder()
    grouped: Grouped[Any, Any] = Grouped(name="by-number", key_serde=Serdes.long())
    builder.stream("in").group_by(lambda key, value: value, grouped).count()
    with (
        TopologyTestDriver(builder.build()) as driver,
        pytest.raises(SerializationError) as caught,
    ):
        driver.create_input_topic("in").pipe_input("k", "x")
    error = caught.value
    assert (error.topic, error.partition, error.offset) == ("in", 0, 0)
    assert (
        "by-number-repartition-sink: a key of type str cannot be written as long: pass a key_serde"
        in str(error)
    )


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


_UNFIT = {
    "a lone surrogate": "\ud800",
    "one in a row": {"name": "\ud800"},
    "one deep inside": {"names": [["\ud800"]]},
    "330 levels": _deep(330),
    "500 levels": _deep(500),
    "an object": object(),
}


@pytest.mark.parametrize("value", _UNFIT.values(), ids=_UNFIT)
@pytest.mark.parametrize(
    "operator",
    [
        "table",
        "reduce",
        "window",
        "session",
        "slide",
        "join",
        "suppress",
        "repartition",
        "process",
        "versioned",
    ],
)
def test_a_value_that_cannot_be_kept_goes_to_the_handler(value: Any, operator: str) -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in").map_values(lambda good: "good" if good else value)
    _program(builder, stream, operator)
    nodes = []

    def note(error: Any, record: Any) -> Any:
        nodes.append((record.node, record.topic, record.offset))
        return log_and_continue(error, record)

    options = TaskOptions(handlers=Handlers(processing=note))
    records = [("a", True), ("b", False), ("b", True)]
    found = _counts(builder, records, options=options)
    assert {offset for _, _, offset in nodes} == {1}, nodes
    assert {key for key, _ in found} == {"a", "b"}


def _program(  # noqa: C901 an operator each
    builder: StreamsBuilder, stream: Any, operator: str
) -> None:
    grouped = stream.group_by_key()
    last = lambda _old, new: new  # noqa: E731
    match operator:
        case "table":
            stream.to_table(_kept("rows")).to_stream().to("out")
        case "versioned":
            stream.to_table(Materialized.versioned("rows", history=10)).to_stream().to("out")
        case "reduce":
            grouped.reduce(last).to_stream().to("out")
        case "window":
            table = grouped.windowed_by(TimeWindows.of(9)).reduce(last)
            table.to_stream(lambda windowed, _: windowed.key).to("out")
        case "session":
            table = grouped.windowed_by(SessionWindows.of(9)).reduce(last)
            table.to_stream(lambda windowed, _: windowed.key).to("out")
        case "slide":
            table = grouped.windowed_by(SlidingWindows.of(9)).reduce(last)
            table.to_stream(lambda windowed, _: windowed.key).to("out")
        case "join":
            stream.join(stream, lambda a, b: (a, b), JoinWindows.of(5)).to("out")
        case "suppress":
            rows = stream.to_table().suppress(Suppressed.until_time_limit(0))
            rows.to_stream().to("out")
        case "repartition":
            stream.repartition().to("out")
        case "process":

            class Keeps(Processor[Any, Any, Any, Any]):
                def process(self, record: Any) -> None:
                    self.context.state_store("rows").put(record.key, record.value)
                    self.context.forward(record)

            builder.add_state_store(StoreSpec(name="rows"))
            stream.process(Keeps, "rows").to("out")


def test_a_windowed_key_in_a_store_is_read_back_with_its_window() -> None:
    builder = StreamsBuilder()
    table = builder.stream("in").group_by_key().windowed_by(TimeWindows.of(10)).count()
    table.filter(lambda key, count: True, _kept("kept"))
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in").pipe_input("a", 1, timestamp=15)
        assert list(driver.get_key_value_store("kept").all()) == [
            (Windowed("a", Window(10, 20)), 1)
        ]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("serde", [Serdes.json(), Serdes.avro(_AVRO), None])
def test_random_batches_over_partitions_find_the_same_keys(
    seed: int, serde: Serde[Any] | None
) -> None:
    """A table is joined with a stream that gets its keys from its values."""
    builder = StreamsBuilder()
    grouped: Grouped[Any, Any] = Grouped(key_serde=serde)
    counted = builder.stream("in").group_by(lambda _, number: _place(number), grouped).count()
    sums = builder.stream("in").group_by(lambda _, number: _place(number), grouped)
    total = sums.reduce(lambda a, b: a + b)
    both = counted.join(total, lambda count, number: [count, number])
    both.to_stream().map(lambda key, value: (key["number"], value)).to("out", _JSON)
    numbers = [n % 7 for n in range(40)]
    found = dict(_counts(builder, [(str(n), n) for n in numbers], partitions=4, batches=seed))
    assert found == {n: [numbers.count(n), n * numbers.count(n)] for n in range(7)}


def _place(number: int) -> dict[str, Any]:
    return {"shop": "s", "number": number}


def test_a_processors_own_store_takes_any_plain_key_whatever_the_default() -> None:
    class Totals(Processor[Any, Any, Any, Any]):
        def process(self, record: Any) -> None:
            store = self.context.state_store("totals")
            store.put("all", (store.get("all") or 0) + record.value)
            store.put([record.key], record.value)

    builder = StreamsBuilder()
    builder.add_state_store(StoreSpec(name="totals"))
    builder.stream("in").process(Totals, "totals")
    with TopologyTestDriver(builder.build(), key_serde=Serdes.long()) as driver:
        driver.create_input_topic("in").pipe_key_value_list([(1, 2), (2, 3)])
        store = driver.get_key_value_store("totals")
        assert (store.get("all"), store.get([1]), store.get([2])) == (5, 2, 3)
