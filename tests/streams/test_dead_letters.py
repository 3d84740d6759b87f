"""A dead letter is the record that failed, as it came from its topic."""

from typing import Any

import pytest

from thulawa.runtime.handlers import DeadLetterQueue, Handlers
from thulawa.runtime.task_options import TaskOptions
from thulawa.streams import (
    Consumed,
    EmitStrategy,
    Joined,
    Materialized,
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


def refuse_bad(value: Any) -> Any:
    if value == "bad":
        raise ValueError
    return value


async def refuse_bad_later(value: Any) -> Any:
    return refuse_bad(value)


@pytest.mark.parametrize("values", [["bad"], ["good", "bad"], ["bad", "good"], ["x", "bad", "y"]])
@pytest.mark.parametrize("waits", [False, True])
def test_it_is_raw_wherever_it_stands_in_a_batch(values: list[str], waits: bool) -> None:  # noqa: FBT001 a parameter
    builder = StreamsBuilder()
    stream = builder.stream("in", READ).map_values(lambda value: value["v"])
    out = stream.map_values_async(refuse_bad_later) if waits else stream.map_values(refuse_bad)
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
    return builder.stream("in").left_join(table, lambda a, _: refuse_bad(a), Joined(grace=10))


def held_by_a_window(windows: Any) -> Any:
    def program(builder: StreamsBuilder) -> Any:
        final = EmitStrategy.on_window_close()
        grouped = builder.stream("in").group_by_key().windowed_by(windows)
        results = grouped.emit_strategy(final).reduce(max)
        return results.to_stream().map(lambda windowed, value: (windowed.key, refuse_bad(value)))

    return program


def held_by_suppress(builder: StreamsBuilder) -> Any:
    held = builder.table("in").suppress(Suppressed.until_time_limit(10))
    return held.to_stream().map_values(refuse_bad)


HELD = {
    "table": held_by_a_table,
    "suppress": held_by_suppress,
    "tumbling": held_by_a_window(TimeWindows.of(10)),
    "sliding": held_by_a_window(SlidingWindows.of(10)),
    "session": held_by_a_window(SessionWindows.of(10)),
}


@pytest.mark.parametrize("program", HELD.values(), ids=HELD)
def test_what_had_waited_is_not_taken_for_what_moved_time(program: Any) -> None:
    builder = StreamsBuilder()
    program(builder).to("out")
    with TopologyTestDriver(builder.build(), options=OPTIONS) as driver:
        topic = driver.create_input_topic("in")
        for key, value, time in (("a", "bad", 0), ("b", "next", 50), ("c", "last", 100)):
            topic.pipe_input(key, value, time)
        letters = driver.create_output_topic("dead").read_records_to_list()
        assert [letter.value for letter in letters] == [b"bad"]
        assert driver.create_output_topic("out").read_values_to_list() == ["next"]
