"""Bad input gets the answer the table in SEMANTICS.md gives."""

import asyncio
import logging
import pickle
from typing import Any

import pytest

from thulawa.engine import Retry as Attempts
from thulawa.errors import (
    ConfigurationError,
    ProcessingError,
    ProductionError,
    SerializationError,
    StreamError,
    TimestampError,
)
from thulawa.runtime.handlers import (
    DeadLetterQueue,
    ErrorRecord,
    Handlers,
    Response,
    Resume,
    RetryOutput,
    log_and_continue,
)
from thulawa.runtime.task_options import TaskOptions
from thulawa.streams import (
    Consumed,
    KStream,
    Materialized,
    Produced,
    Serde,
    Serdes,
    StreamsBuilder,
    TimeWindows,
)
from thulawa.testing import TopologyTestDriver

JSON: Consumed[Any, Any] = Consumed.with_(Serdes.string(), Serdes.json())

MALFORMED = {
    "not JSON": b"{",
    "not UTF-8": b'"\xff"',
    "truncated": b'{"a": [1, 2',
    "10,000 levels deep": b"[" * 10_000 + b"]" * 10_000,
    "NaN": b"NaN",
    "infinite": b"1e999",
    "duplicate keys": b'{"a": 1, "a": 2}',
    "pickled": pickle.dumps({"a": 1}),
    "empty": b"",
}


def identity() -> StreamsBuilder:
    builder = StreamsBuilder()
    builder.stream("in", JSON).to("out", Produced.with_(Serdes.string(), Serdes.json()))
    return builder


def options(**handlers: Any) -> TaskOptions:
    return TaskOptions(handlers=Handlers(**handlers))


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_malformed_data_fails_by_default_and_says_where(data: bytes) -> None:
    with TopologyTestDriver(identity().build()) as driver:
        topic = driver.create_input_topic("in")
        topic.pipe_input("k", {"fine": 1})
        with pytest.raises(SerializationError, match=r"cannot be read as JSON \(in-0 at 1\)"):
            topic.pipe_input("k", data)


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_malformed_data_is_skipped_and_counted_when_asked(data: bytes) -> None:
    chosen = options(deserialization=log_and_continue)
    with TopologyTestDriver(identity().build(), options=chosen) as driver:
        topic = driver.create_input_topic("in")
        topic.pipe_input("a", data)
        topic.pipe_input("b", [1])
        assert driver.create_output_topic("out").read_key_values_to_list() == [("b", [1])]
        assert driver.dropped_records() == 1


def test_a_dead_letter_holds_the_raw_record_and_what_happened() -> None:
    chosen = options(deserialization=DeadLetterQueue("dead"))
    with TopologyTestDriver(identity().build(), options=chosen) as driver:
        driver.create_input_topic("in").pipe_input(b"key", b"{", 77, (("trace", b"1"),))
        letter = driver.create_output_topic("dead").read_record()
    assert (letter.key, letter.value, letter.timestamp) == (b"key", b"{", 77)
    headers = dict(letter.headers)
    assert headers["trace"] == b"1"
    place = [headers[f"__streams.errors.{name}"] for name in ("topic", "partition", "offset")]
    assert place == [b"in", b"0", b"0"]
    assert headers["__streams.errors.exception"] == b"JSONDecodeError"


def test_the_value_is_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    chosen = options(deserialization=log_and_continue)
    with (
        caplog.at_level(logging.DEBUG),
        TopologyTestDriver(identity().build(), options=chosen) as driver,
    ):
        driver.create_input_topic("in").pipe_input("k", b'{"card": "4111-secret"')
    assert "in-0 at 0" in caplog.text
    assert "secret" not in caplog.text


def test_the_value_is_not_in_the_error_or_its_causes_either() -> None:
    with TopologyTestDriver(identity().build()) as driver:
        topic = driver.create_input_topic("in")
        with pytest.raises(SerializationError) as caught:
            topic.pipe_input("k", b'{"card": "4111-secret"')
    error: BaseException | None = caught.value
    while error is not None:
        assert "secret" not in str(error)
        error = error.__cause__


def failing(value: Any) -> Any:
    if value == "poison":
        raise KeyError(value)
    return value


def test_a_record_that_always_fails_becomes_a_dead_letter_and_the_others_go_on() -> None:
    builder = StreamsBuilder()
    builder.stream("in", JSON).map_values(failing, named="cook").to("out")
    chosen = options(processing=DeadLetterQueue("dead"))
    with TopologyTestDriver(builder.build(), options=chosen) as driver:
        topic = driver.create_input_topic("in")
        topic.pipe_key_value_list([("a", 1), ("a", "poison"), ("a", 2), ("b", 3)])
        assert driver.create_output_topic("out").read_values_to_list() == [1, 2, 3]
        letter = driver.create_output_topic("dead").read_record()
    assert (letter.key, letter.value) == (b"a", b'"poison"')  # as it came, not as it was read
    assert dict(letter.headers)["__streams.errors.node"] == b"cook"


def test_an_error_in_a_function_names_node_record_and_the_users_line() -> None:
    builder = StreamsBuilder()
    builder.stream("in").map_values(failing, named="cook").to("out")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in")
        with pytest.raises(ProcessingError) as caught:
            topic.pipe_input("a", "poison")
    assert str(caught.value).startswith("cook: KeyError in the function given at " + __file__)
    assert "(in-0 at 0)" in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)


def test_when_the_dead_letter_cannot_be_sent_the_task_fails() -> None:
    def to_nowhere(error: StreamError, record: ErrorRecord) -> Response:
        raise OSError("the queue is gone")

    builder = StreamsBuilder()
    builder.stream("in").map_values(failing).to("out")
    with TopologyTestDriver(builder.build(), options=options(processing=to_nowhere)) as driver:
        topic = driver.create_input_topic("in")
        with pytest.raises(OSError, match="the queue is gone"):
            topic.pipe_input("a", "poison")


def test_an_oversized_output_is_found_before_it_is_sent() -> None:
    builder = StreamsBuilder()
    builder.stream("in").to("out", Produced.with_(Serdes.string(), Serdes.string()))
    chosen = TaskOptions(max_record_bytes=10)
    with TopologyTestDriver(builder.build(), options=chosen) as driver:
        topic = driver.create_input_topic("in")
        with pytest.raises(ProductionError, match="11 bytes, more than the limit of 10"):
            topic.pipe_input("k", "x" * 10)
    chosen = TaskOptions(
        max_record_bytes=10, handlers=Handlers(production=lambda error, record: Resume())
    )
    with TopologyTestDriver(builder.build(), options=chosen) as driver:
        driver.create_input_topic("in").pipe_key_value_list([("k", "x" * 10), ("k", "y")])
        assert driver.create_output_topic("out").read_values_to_list() == ["y"]


def test_an_output_that_cannot_be_written_asks_the_production_handler() -> None:
    chosen = options(production=DeadLetterQueue("dead"))
    builder = StreamsBuilder()
    nans = builder.stream("in").map_values(lambda value: value or float("nan"))
    nans.to("out", Produced.with_(Serdes.string(), Serdes.json()))
    with TopologyTestDriver(builder.build(), options=chosen) as driver:
        driver.create_input_topic("in").pipe_key_value_list([("k", 0), ("k", 1)])
        assert driver.create_output_topic("out").read_values_to_list() == [1]
        assert driver.create_output_topic("dead").queue_size == 1


def windowed() -> StreamsBuilder:
    builder = StreamsBuilder()
    counts = builder.stream("in").group_by_key().windowed_by(TimeWindows.of("1 s")).count()
    counts.to_stream(lambda w, _: str(w.window.start)).to("out")
    return builder


def test_a_negative_timestamp_follows_the_policy() -> None:
    with TopologyTestDriver(windowed().build()) as driver:
        topic = driver.create_input_topic("in")
        with pytest.raises(TimestampError, match="-5 is negative"):
            topic.pipe_input("k", 1, -5)
    with TopologyTestDriver(
        windowed().build(), options=TaskOptions(on_bad_timestamp="skip")
    ) as driver:
        driver.create_input_topic("in").pipe_input("k", 1, -5)
        assert driver.create_output_topic("out").is_empty()
        assert driver.dropped_records() == 1
    with TopologyTestDriver(
        windowed().build(), options=TaskOptions(on_bad_timestamp="partition_time")
    ) as driver:
        topic = driver.create_input_topic("in")
        topic.pipe_input("k", 1, 2500)
        topic.pipe_input("k", 1, -5)
        assert driver.create_output_topic("out").read_key_values_to_list() == [
            ("2000", 1),
            ("2000", 2),
        ]


def test_a_record_of_the_year_3000_does_not_close_every_window() -> None:
    year_3000 = 32_503_680_000_000
    chosen = TaskOptions(on_bad_timestamp="skip", max_ahead="1 day")
    with TopologyTestDriver(windowed().build(), options=chosen) as driver:
        topic = driver.create_input_topic("in")
        topic.pipe_input("k", 1, 1500)
        topic.pipe_input("k", 1, year_3000)
        topic.pipe_input("k", 1, 1600)
        assert driver.create_output_topic("out").read_values_to_list() == [1, 2]


@pytest.mark.parametrize("time", [None, 1.5, "12:00"])
def test_a_timestamp_that_is_none_is_a_bad_one(time: Any) -> None:
    builder = StreamsBuilder()
    read: Any = Consumed(timestamp_extractor=lambda timestamp, key, value, seen: time)
    builder.stream("in", read).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in")
        with pytest.raises(TimestampError, match="an int, in milliseconds, not a"):
            topic.pipe_input("k", 1, 5)
    skip = TaskOptions(on_bad_timestamp="skip")
    with TopologyTestDriver(builder.build(), options=skip) as driver:
        driver.create_input_topic("in").pipe_input("k", 1, 5)
        assert driver.dropped_records() == 1


def test_timestamps_at_the_edge_of_64_bits_are_no_accident() -> None:
    with TopologyTestDriver(windowed().build()) as driver:
        topic = driver.create_input_topic("in")
        topic.pipe_input("k", 1, 2**63 - 1)
        topic.pipe_input("k", 1, 0)
        assert driver.create_output_topic("out").queue_size == 1
        with pytest.raises(TimestampError, match="64 bits"):
            topic.pipe_input("k", 1, 2**63)


def test_a_huge_key_and_a_hot_key_are_keys_like_others() -> None:
    builder = StreamsBuilder()
    builder.stream("in").group_by_key().count(Materialized.as_("counts"))
    with TopologyTestDriver(builder.build()) as driver:
        huge = "k" * 1_000_000
        pairs = [(huge, 1), *[("hot", i) for i in range(1_000)]]
        driver.create_input_topic("in").pipe_key_value_list(pairs)
        store = driver.get_key_value_store("counts")
        assert (store.get(huge), store.get("hot")) == (1, 1_000)


def test_a_million_keys_in_a_batch_do_not_hold_more_than_the_bound() -> None:
    running, most = 0, 0

    async def count(value: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return value

    builder = StreamsBuilder()
    builder.stream("in").map_values_async(count, in_flight=50).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        pairs = [*((f"k{n}", n) for n in range(20_000)), ("last", -1)]
        driver.create_input_topic("in").pipe_key_value_list(pairs)
        assert driver.create_output_topic("out").queue_size == 20_001
    assert most == 50


def test_one_hot_key_does_not_starve_the_others() -> None:
    async def slow(value: int) -> int:
        await asyncio.sleep(1)
        return value

    builder = StreamsBuilder()
    builder.stream("in").map_values_async(slow, in_flight=10).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        pairs = [*(("hot", n) for n in range(50)), ("other", -1)]
        driver.create_input_topic("in").pipe_key_value_list(pairs)
        values = driver.create_output_topic("out").read_values_to_list()
    assert values.index(-1) < 3
    assert [value for value in values if value >= 0] == list(range(50))


def test_a_call_that_never_returns_is_tried_again_and_then_set_aside() -> None:
    calls: list[str] = []

    async def stuck(value: str) -> str:
        calls.append(value)
        if value == "poison":
            await asyncio.sleep(10**9)
        return value

    builder = StreamsBuilder()
    retry = Attempts(attempts=3)
    builder.stream("in").map_values_async(stuck, timeout=5.0, retry=retry).to("out")
    chosen = options(processing=DeadLetterQueue("dead"))
    with TopologyTestDriver(builder.build(), options=chosen) as driver:
        topic = driver.create_input_topic("in")
        topic.pipe_key_value_list([("a", "poison"), ("a", "after"), ("b", "other")])
        assert driver.create_output_topic("out").read_values_to_list() == ["other", "after"]
        letter = driver.create_output_topic("dead").read_record()
    assert letter.value == b'"poison"'
    assert b"AttemptTimedOut" in (dict(letter.headers)["__streams.errors.exception"] or b"")
    assert calls.count("poison") == 3


@pytest.mark.parametrize("name", ["../x", "a\0b", "a\nb", "a" * 250, ".", "..", ""])
def test_names_follow_kafkas_rule(name: str) -> None:
    builder = StreamsBuilder()
    with pytest.raises(ConfigurationError):
        builder.stream(name)
    stream: KStream[Any, Any] = builder.stream("fine")
    with pytest.raises(ConfigurationError):
        stream.to(name)
    with pytest.raises(ConfigurationError):
        stream.filter(lambda k, v: True, named=name)
    with pytest.raises(ConfigurationError):
        stream.group_by_key().count(Materialized.as_(name))


def test_a_serde_of_the_users_own_that_breaks_is_answered_like_the_others() -> None:
    def broken(data: bytes) -> Any:
        raise ZeroDivisionError

    mine: Serde[Any] = Serde("mine", lambda value: b"", broken)
    builder = StreamsBuilder()
    builder.stream("in", Consumed.with_(None, mine)).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in")
        with pytest.raises(SerializationError, match="ZeroDivisionError"):
            topic.pipe_input("k", b"x")


def test_a_serializer_that_fails_now_and_then_is_tried_again() -> None:
    calls = 0

    def sometimes(value: Any) -> bytes:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise ConnectionError("the registry is away")
        return b"written"

    mine: Serde[Any] = Serde("mine", sometimes, bytes)
    builder = StreamsBuilder()
    builder.stream("in").to("out", Produced.with_(None, mine))
    topology = builder.build()
    chosen = options(production=lambda error, record: RetryOutput(attempts=3))
    with TopologyTestDriver(topology, options=chosen) as driver:
        driver.create_input_topic("in").pipe_input("k", 1)
        assert driver.create_output_topic("out").queue_size == 1
    calls = -10
    with TopologyTestDriver(topology, options=chosen) as driver:
        topic = driver.create_input_topic("in")
        with pytest.raises(ProductionError, match="ConnectionError while an output was written"):
            topic.pipe_input("k", 1)
    assert calls == -7


def test_a_bad_record_of_a_global_table_is_answered_like_any_other() -> None:
    builder = StreamsBuilder()
    rates = builder.global_table("rates", JSON)
    builder.stream("in").join(rates, lambda k, v: v, lambda v, rate: rate).to("out")
    topology = builder.build()
    with TopologyTestDriver(topology) as driver:
        topic = driver.create_input_topic("rates")
        with pytest.raises(SerializationError, match=r"\(rates-0 at 0\)"):
            topic.pipe_input(b"usd", b"{")
    chosen = options(deserialization=DeadLetterQueue("dead"))
    with TopologyTestDriver(topology, options=chosen) as driver:
        rates_topic = driver.create_input_topic("rates")
        rates_topic.pipe_input(b"usd", b"{")
        rates_topic.pipe_input(b"eur", b"2")
        driver.create_input_topic("in").pipe_key_value_list([("k", "usd"), ("k", "eur")])
        assert driver.create_output_topic("out").read_values_to_list() == [2]
        assert driver.create_output_topic("dead").read_record().value == b"{"
