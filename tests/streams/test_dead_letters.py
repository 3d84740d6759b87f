"""A dead letter is the record that failed, as it was read from its topic."""

from typing import Any

import pytest

from thulawa.errors import StreamError
from thulawa.runtime.handlers import DeadLetterQueue, ErrorRecord, Fail, Handlers, Response
from thulawa.runtime.task_options import TaskOptions
from thulawa.streams import (
    Consumed,
    EmitStrategy,
    Joined,
    Materialized,
    Produced,
    Serdes,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
)
from thulawa.testing import TopologyTestDriver

OPTIONS = TaskOptions(handlers=Handlers(processing=DeadLetterQueue("dead")))
READ = Consumed.with_(Serdes.string(), Serdes.json())


def reject_bad(value: Any) -> Any:
    if value == "bad":
        raise ValueError
    return value


async def reject_bad_later(value: Any) -> Any:
    return reject_bad(value)


@pytest.mark.parametrize("values", [["bad"], ["good", "bad"], ["bad", "good"], ["x", "bad", "y"]])
@pytest.mark.parametrize("waits", [False, True])
def test_it_is_the_raw_record_wherever_it_is_in_a_batch(values: list[str], waits: bool) -> None:  # noqa: FBT001 a parameter
    builder = StreamsBuilder()
    stream = builder.stream("in", READ).map_values(lambda value: value["v"])
    out = stream.map_values_async(reject_bad_later) if waits else stream.map_values(reject_bad)
    out.to("out")
    with TopologyTestDriver(builder.build(), options=OPTIONS) as driver:
        pairs = [(str(n), {"v": value}) for n, value in enumerate(values)]
        driver.create_input_topic("in").pipe_key_value_list(pairs)
        letter = driver.create_output_topic("dead").read_record()
        assert (letter.key, letter.value) == (str(values.index("bad")).encode(), b'{"v":"bad"}')
        assert dict(letter.headers)["__streams.errors.offset"] == letter.key
        assert driver.create_output_topic("dead").is_empty()


def held_by_a_table(builder: StreamsBuilder) -> Any:
    table = builder.table("t", materialized=Materialized.versioned("v", history=100))
    return builder.stream("in").left_join(table, lambda a, _: reject_bad(a), Joined(grace=10))


def held_by_a_window(windows: Any) -> Any:
    def program(builder: StreamsBuilder) -> Any:
        final = EmitStrategy.on_window_close()
        grouped = builder.stream("in").group_by_key().windowed_by(windows)
        results = grouped.emit_strategy(final).reduce(max)
        return results.to_stream().map(lambda windowed, value: (windowed.key, reject_bad(value)))

    return program


def held_by_suppress(builder: StreamsBuilder) -> Any:
    held = builder.table("in").suppress(Suppressed.until_time_limit(10))
    return held.to_stream().map_values(reject_bad)


HELD = {
    "table": held_by_a_table,
    "suppress": held_by_suppress,
    "tumbling": held_by_a_window(TimeWindows.of(10)),
    "sliding": held_by_a_window(SlidingWindows.of(10)),
    "session": held_by_a_window(SessionWindows.of(10)),
}


@pytest.mark.parametrize("program", HELD.values(), ids=HELD)
def test_a_buffered_record_is_not_confused_with_the_one_that_advanced_time(program: Any) -> None:
    builder = StreamsBuilder()
    program(builder).to("out")
    with TopologyTestDriver(builder.build(), options=OPTIONS) as driver:
        topic = driver.create_input_topic("in")
        for key, value, time in (("a", "bad", 0), ("b", "next", 50), ("c", "last", 100)):
            topic.pipe_input(key, value, time)
        letters = driver.create_output_topic("dead").read_records_to_list()
        assert [letter.value for letter in letters] == [b"bad"]
        assert driver.create_output_topic("out").read_values_to_list() == ["next"]


@pytest.mark.parametrize("stage", ["deserialization", "processing", "production"])
def test_the_dead_letters_of_a_failure_are_sent_before_the_task_fails(stage: str) -> None:
    def fail(error: StreamError, record: ErrorRecord) -> Response:
        return Fail((DeadLetterQueue("dead").letter(error, record),))

    values = {"deserialization": b"no JSON", "processing": "bad", "production": 7}
    builder = StreamsBuilder()
    produced = Produced.with_(Serdes.string(), Serdes.string())
    builder.stream("in", READ).map_values(reject_bad).to("out", produced)
    options = TaskOptions(handlers=Handlers(**{stage: fail}))
    driver = TopologyTestDriver(builder.build(), options=options)
    with pytest.raises(StreamError):
        driver.create_input_topic("in").pipe_input("k", values[stage])
    assert driver.create_output_topic("dead").queue_size == 1
    driver.close()
