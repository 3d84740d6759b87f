"""Serdes are handed down from what a stream or table was made of."""

from typing import Any

import pytest

from thulawa.errors import ConfigurationError
from thulawa.streams import (
    Consumed,
    Grouped,
    Serdes,
    SessionWindows,
    StreamsBuilder,
    TimeWindows,
    Window,
    Windowed,
)
from thulawa.testing import TopologyTestDriver

TEXT: Consumed[str, str] = Consumed.with_(Serdes.string(), Serdes.string())

PROGRAMS: dict[str, tuple[Any, Any, Any]] = {
    "stream": (lambda b: b.stream("in", TEXT).filter(lambda k, v: True), "k", "v"),
    "table": (lambda b: b.table("in", TEXT).filter(lambda k, v: True).to_stream(), "k", "v"),
    "to_table": (lambda b: b.stream("in", TEXT).to_table().to_stream(), "k", "v"),
    "count": (lambda b: b.stream("in", TEXT).group_by_key().count().to_stream(), "k", 1),
    "reduce": (lambda b: b.stream("in", TEXT).group_by_key().reduce(max).to_stream(), "k", "v"),
    "windowed": (
        lambda b: (
            b.stream("in", TEXT).group_by_key().windowed_by(TimeWindows.of(10)).count().to_stream()
        ),
        Windowed("k", Window(10, 20)),
        1,
    ),
    "session": (
        lambda b: (
            b.stream("in", TEXT)
            .group_by_key()
            .windowed_by(SessionWindows.of(10))
            .reduce(max)
            .to_stream()
        ),
        Windowed("k", Window(15, 15)),
        "v",
    ),
    "regrouped": (
        lambda b: (
            b.stream("in", TEXT)
            .group_by(lambda k, v: v, Grouped.with_(Serdes.string(), Serdes.string()))
            .count()
            .to_stream()
        ),
        "v",
        1,
    ),
}


@pytest.mark.parametrize(("program", "key", "value"), PROGRAMS.values(), ids=PROGRAMS)
def test_what_is_written_is_bytes_that_can_be_read(program: Any, key: Any, value: Any) -> None:
    builder = StreamsBuilder()
    program(builder).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in").pipe_input("k", "v", 15)
        topic = driver.create_output_topic("out")
        raw = driver.create_output_topic("out", Serdes.byte_array(), Serdes.byte_array())
        assert topic.queue_size == 1
        record = topic.read_record()
        assert (record.key, record.value) == (key, value)
        driver.create_input_topic("in").pipe_input("k", "v", 16)
        assert isinstance(raw.read_records_to_list()[-1].value, bytes)


def test_without_serdes_topics_hold_text_and_json() -> None:
    builder = StreamsBuilder()
    builder.stream("in").map_values(lambda value: (value, 1)).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in")
        with pytest.raises(ConfigurationError, match="int cannot be written as text"):
            topic.pipe_input(1, "v")
        with pytest.raises(ConfigurationError, match="object cannot be written as JSON"):
            topic.pipe_input("k", object())
        topic.pipe_input("k", {"a": (1, 2)})
        topic.pipe_input(b"k", b"[1, 2]")
        assert driver.create_output_topic("out").read_key_values_to_list() == [
            ("k", [{"a": [1, 2]}, 1]),
            ("k", [[1, 2], 1]),
        ]
