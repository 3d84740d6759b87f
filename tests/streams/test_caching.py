"""Caches leave out updates and change no result, also of windows that have expired."""

import random
from typing import Any

import pytest

from thulawa.streams import (
    Materialized,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TimeWindows,
)
from thulawa.testing import TopologyTestDriver, seeds

WINDOWS = [
    TimeWindows.of(10, grace=3).advance_by(4),
    SlidingWindows.of(10),
    SlidingWindows.of(10, grace=5),
    SessionWindows.of(5, grace=3),
    SessionWindows.of(20, grace=10),
]


def updates(window: Any, inputs: list[tuple[str, int]], *, caching: bool) -> list[list[Any]]:
    """Return the updates that each input causes."""
    builder = StreamsBuilder()
    grouped: Any = builder.stream("in").group_by_key().windowed_by(window)
    grouped.count(Materialized(caching=caching)).to_stream().to("out")
    steps = []
    with TopologyTestDriver(builder.build()) as driver:
        topic, out = driver.create_input_topic("in"), driver.create_output_topic("out")
        for key, time in inputs:
            topic.pipe_input(key, "x", time)
            steps.append(out.read_records_to_list())
    return steps


@pytest.mark.parametrize("seed", seeds(10))
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_a_cache_gives_the_last_update_of_each_window(window: Any, seed: int) -> None:
    chance = random.Random(seed)
    inputs, now = [], 0
    for _ in range(60):
        now += chance.choice((0, 1, 2, 3, 5, 15))
        late = chance.choice((0, 0, 0, 2, 5, 10, 20, 40))
        inputs.append((chance.choice("ab"), max(0, now - late)))
    cached, plain = (updates(window, inputs, caching=caching) for caching in (True, False))
    for some, every in zip(cached, plain, strict=True):
        last = {repr(update.key): update for update in every}
        assert {repr(update.key): update for update in some} == last
        assert len(some) == len(last)
