"""Topics that a function of the record names."""

from typing import Any

import pytest

from thulawa.errors import (
    ConfigurationError,
    ProcessingError,
)
from thulawa.runtime.handlers import DeadLetterQueue, Handlers
from thulawa.runtime.task_options import TaskOptions
from thulawa.streams import Processor, ProcessorContext, Record, StreamsBuilder
from thulawa.testing import TopologyTestDriver


def test_the_function_may_ask_where_the_record_is_from() -> None:
    builder = StreamsBuilder()
    builder.stream(["eu", "us"]).to(lambda key, value, metadata: f"{metadata.topic}-{key}")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("eu").pipe_input("a", 1)
        driver.create_input_topic("us").pipe_input("a", 2)
        assert driver.create_output_topic("eu-a").read_values_to_list() == [1]
        assert driver.create_output_topic("us-a").read_values_to_list() == [2]


@pytest.mark.parametrize("name", [None, "../x", "", 7])
def test_a_name_that_no_topic_can_have_is_an_error_of_its_record(name: object) -> None:
    builder = StreamsBuilder()
    chosen: Any = lambda _, value: name if value else "good"  # noqa: E731 of no type on purpose
    builder.stream("in").to(chosen)
    with TopologyTestDriver(builder.build()) as driver:
        with pytest.raises(ProcessingError) as caught:
            driver.create_input_topic("in").pipe_input("a", 1)
        assert isinstance(caught.value.__cause__, ConfigurationError)
    options = TaskOptions(handlers=Handlers(processing=DeadLetterQueue("dead")))
    with TopologyTestDriver(builder.build(), options=options) as driver:
        driver.create_input_topic("in").pipe_value_list([1, 0])
        assert driver.create_output_topic("dead").read_values_to_list() == [b"1"]
        assert driver.create_output_topic("good").read_values_to_list() == [0]


def test_what_a_punctuation_forwards_is_from_no_topic() -> None:
    class Ticks(Processor[Any, Any, Any, Any]):
        def init(self, context: ProcessorContext[Any, Any]) -> None:
            context.schedule(
                10, "wall_clock_time", lambda now: context.forward(Record("k", now, now))
            )

        def process(self, record: Record[Any, Any]) -> None: ...

    builder = StreamsBuilder()
    builder.stream("in").process(Ticks).to(lambda _k, _v, metadata: metadata.topic or "clock")
    with TopologyTestDriver(builder.build()) as driver:
        driver.advance_wall_clock_time(10)
        assert driver.create_output_topic("clock").read_value() == 10
