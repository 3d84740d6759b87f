"""Records that are left out are counted, by node and reason."""

from typing import Any

import pytest

from thulawa.runtime.handlers import DeadLetterQueue, Handlers, log_and_continue
from thulawa.runtime.metrics import NodeMetrics
from thulawa.runtime.task_options import TaskOptions
from thulawa.streams import (
    Consumed,
    Processor,
    Produced,
    Record,
    Serdes,
    StreamsBuilder,
    TimeWindows,
)
from thulawa.testing import TopologyTestDriver

SKIP = Handlers(
    deserialization=log_and_continue, processing=log_and_continue, production=log_and_continue
)
ASIDE = Handlers(
    deserialization=DeadLetterQueue("dead"),
    processing=DeadLetterQueue("dead"),
    production=DeadLetterQueue("dead"),
)


def program() -> StreamsBuilder:
    builder = StreamsBuilder()
    read: Consumed[Any, int] = Consumed(name="source")
    stream = builder.stream("in", read).map_values(lambda v: 10 // v, named="divide")
    stream.to("out", Produced(key_serde=Serdes.long(), name="sink"))
    return builder


@pytest.mark.parametrize(
    ("handlers", "expected"),
    [
        (SKIP, NodeMetrics(dropped_records=1, skipped_records=1)),
        (ASIDE, NodeMetrics(dropped_records=1, dead_letter_records=1)),
    ],
)
@pytest.mark.parametrize("batches", [None, 1])
def test_every_handler_that_goes_on_counts_at_its_node(
    handlers: Handlers, expected: NodeMetrics, batches: int | None
) -> None:
    options = TaskOptions(handlers=handlers)
    with TopologyTestDriver(
        program().build(), options=options, partitions=3, batches=batches
    ) as driver:
        topic = driver.create_input_topic("in")
        topic.pipe_input("a", b"{")
        topic.pipe_input("b", 0)
        topic.pipe_input("c", 5)
        assert driver.metrics() == {"divide": expected, "sink": expected, "source": expected}
        assert driver.dropped_records() == 3
        driver.restart()
        assert driver.dropped_records() == 3


def test_late_records_and_those_without_a_key_are_told_apart() -> None:
    builder = StreamsBuilder()
    windows = builder.stream("in").group_by_key().windowed_by(TimeWindows.of(10))
    windows.count(named="count").to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in")
        for key, time in (("k", 50), ("k", 5), (None, 60), ("k", 55)):
            topic.pipe_input(key, 1, time)
        (metrics,) = driver.metrics().values()
        assert metrics == NodeMetrics(dropped_records=2, late_records=1)


def test_a_global_table_counts_too() -> None:
    builder = StreamsBuilder()
    builder.global_table("rates")
    options = TaskOptions(handlers=SKIP)
    with TopologyTestDriver(builder.build(), options=options) as driver:
        driver.create_input_topic("rates").pipe_key_value_list([("a", b"{"), (None, 1), ("b", 2)])
        (metrics,) = driver.metrics().values()
        assert metrics == NodeMetrics(dropped_records=2, skipped_records=1)


def letters(builder: StreamsBuilder, *values: Any) -> list[tuple[Any, Any, dict[str, str]]]:
    with TopologyTestDriver(builder.build(), options=TaskOptions(handlers=ASIDE)) as driver:
        driver.create_input_topic("in").pipe_key_value_list([("k", value) for value in values])
        found = driver.create_output_topic("dead").read_records_to_list()
    return [
        (
            letter.key,
            letter.value,
            {
                name.removeprefix("__streams.errors."): (value or b"").decode()
                for name, value in letter.headers
            },
        )
        for letter in found
    ]


def test_a_dead_letter_has_the_message_and_the_stack_of_the_exception_itself() -> None:
    def divide(value: Any) -> Any:
        try:
            return 1 // value
        except ZeroDivisionError as error:
            raise LookupError("no such customer: c-17") from error

    builder = StreamsBuilder()
    builder.stream("in").map_values(divide).to("out")
    ((_, _, headers),) = letters(builder, 0)
    assert headers["exception"] == "LookupError"
    assert headers["message"] == "no such customer: c-17"
    trace = headers["stacktrace"]
    assert "in divide" in trace
    assert trace.rstrip().endswith("LookupError: no such customer: c-17")
    assert "ZeroDivisionError" in trace


def test_bytes_that_no_serde_reads_are_told_of_without_their_text() -> None:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    ((_, value, headers),) = letters(builder, b'{"card": "4111')
    assert value == b'{"card": "4111'
    assert headers["exception"] == "JSONDecodeError"
    assert headers["message"] == "a bytes cannot be read as JSON"
    assert "4111" not in headers["stacktrace"]


def test_an_output_with_a_dict_as_key_names_the_input_record() -> None:
    builder = StreamsBuilder()
    builder.stream("in").map(lambda _, value: (value, value["n"])).to("out", Produced(name="sink"))
    found = letters(builder, {"n": 1}, {"n": 2})
    assert [(key, value) for key, value, _ in found] == [(b"k", b'{"n":1}'), (b"k", b'{"n":2}')]
    _, _, headers = found[1]
    assert (headers["topic"], headers["partition"], headers["offset"]) == ("in", "0", "1")
    assert headers["node"] == "sink"
    assert headers["message"] == "a dict cannot be written as text"


def test_an_output_of_a_punctuation_is_a_letter_of_no_topic() -> None:
    class Ticks(Processor[Any, Any, Any, Any]):
        def init(self, context: Any) -> None:
            context.schedule(10, "stream_time", lambda t: context.forward(Record({"t": t}, t, t)))

        def process(self, record: Record[Any, Any]) -> None: ...

    builder = StreamsBuilder()
    builder.stream("in").process(Ticks).to("out")
    ((key, value, headers),) = letters(builder, 1)
    assert (key, value) == (b'{"t":0}', b"0")
    assert (headers["topic"], headers["offset"]) == ("", "-1")
