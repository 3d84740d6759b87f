"""Which programs may commit while calls are in flight, and the progress record."""

from collections.abc import Callable
from typing import Any

import pytest

from thulawa.core.types import TopicPartition
from thulawa.runtime.planning import plan
from thulawa.spark.continuous.stream_task import TaskProgress, may_commit_in_flight
from thulawa.streams import AsyncProcessor, KStream, Record, StreamsBuilder

Program = Callable[[KStream[Any, Any]], Any]


async def call(value: Any) -> Any:
    return value


async def pairs(key: Any, value: Any) -> list[tuple[Any, Any]]:
    return [(key, value)]


def one_part(program: Program) -> Any:
    builder = StreamsBuilder()
    program(builder.stream("in"))
    (part,) = plan(builder.build(), {"in": 1}).parts.values()
    return part


@pytest.mark.parametrize(
    "program",
    [
        lambda stream: stream.map_values(str).to("out"),
        lambda stream: stream.map_values_async(call).to("out"),
        lambda stream: stream.filter(bool).map_values_async(call).peek(print).to("out"),
        lambda stream: stream.map_values_async(call).map_values_async(call).to("out"),
        lambda stream: stream.map_values_async(call).group_by_key().count(),
        lambda stream: stream.flat_map_async(pairs).to("out"),
    ],
)
def test_a_record_without_effects_may_be_in_flight_at_a_commit(program: Program) -> None:
    assert may_commit_in_flight(one_part(program))


class Echo(AsyncProcessor[Any, Any, Any, Any]):
    async def process(self, record: Record[Any, Any]) -> None:
        self.context.forward(record)


def two_children(stream: KStream[Any, Any]) -> None:
    stream.map_values_async(call).to("out")
    stream.to("copies")


@pytest.mark.parametrize(
    "program",
    [
        two_children,
        lambda stream: stream.group_by_key().count().to_stream().map_values_async(call).to("out"),
        lambda stream: stream.flat_map_values(list).map_values_async(call).to("out"),
        lambda stream: stream.flat_map_async(pairs).map_values_async(call).to("out"),
        lambda stream: stream.process_async(Echo).to("out"),
    ],
)
def test_a_record_that_has_had_effects_is_waited_for(program: Program) -> None:
    assert not may_commit_in_flight(one_part(program))


def test_progress_is_read_as_it_was_written() -> None:
    first, second = TopicPartition("in", 0), TopicPartition("other/topic", 3)
    progress = TaskProgress({first: 10, second: 0}, {first: [4, 7]}, {"stream_time": 5})
    found = TaskProgress.decode(progress.encode())
    assert found == progress
    assert found.first_offset(first) == 4
    assert found.first_offset(second) == 0
    assert found.first_offset(TopicPartition("new", 0)) is None
