"""Joins: errors are about the record they came from."""

from typing import Any

from thulawa.runtime.handlers import DeadLetterQueue, Handlers
from thulawa.runtime.task_options import TaskOptions
from thulawa.streams import JoinWindows, StreamsBuilder
from thulawa.testing import TopologyTestDriver


def refuses_none(left: Any, right: Any) -> Any:
    if right is None and left == "bad":
        raise ValueError
    return left, right


def test_an_unmatched_record_that_fails_does_not_take_the_next_one_with_it() -> None:
    builder = StreamsBuilder()
    left, right = builder.stream("left"), builder.stream("right")
    left.left_join(right, refuses_none, JoinWindows.of(10)).to("out")
    options = TaskOptions(handlers=Handlers(processing=DeadLetterQueue("dead")))
    with TopologyTestDriver(builder.build(), options=options) as driver:
        topic = driver.create_input_topic("left")
        for key, value, time in (("a", "bad", 0), ("b", "good", 0), ("c", "next", 100)):
            topic.pipe_input(key, value, time)
        driver.create_input_topic("right").pipe_input("c", "match", 100)
        dead = driver.create_output_topic("dead").read_records_to_list()
        assert [(letter.key, letter.value, letter.timestamp) for letter in dead] == [
            (b"a", b"bad", 0)
        ]
        assert driver.create_output_topic("out").read_key_values_to_list() == [
            ("b", ["good", None]),
            ("c", ["next", "match"]),
        ]
