"""Async nodes: through the engine, in virtual time, each key in order."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from thulawa.engine import Batch, Lanes, Retry
from thulawa.errors import (
    ConfigurationError,
    ProcessingError,
    Terminal,
)
from thulawa.priority.buckets import Buckets
from thulawa.runtime.handlers import DeadLetterQueue, Handlers
from thulawa.runtime.task_options import TaskOptions
from thulawa.streams import ProcessorContext, Record, StoreSpec, StreamsBuilder, Topology
from thulawa.testing import TopologyTestDriver, seeds
from thulawa.topology.processor import AsyncProcessor

PAIRS = [(f"k{i % 7}", i) for i in range(70)]


def run(builder: StreamsBuilder, pairs: list[tuple[Any, Any]], **options: Any) -> list[Any]:
    with TopologyTestDriver(builder.build(), **options) as driver:
        driver.create_input_topic("in").pipe_key_value_list(pairs)
        return driver.create_output_topic("out").read_key_values_to_list()


@pytest.mark.parametrize("seed", seeds(10))
def test_every_key_keeps_its_order_while_many_are_under_way(seed: int) -> None:
    under_way = peak = 0

    async def slow(value: int) -> int:
        nonlocal under_way, peak
        under_way += 1
        peak = max(peak, under_way)
        await asyncio.sleep((value * 7919 % 13) / 10)
        under_way -= 1
        return value

    builder = StreamsBuilder()
    builder.stream("in").map_values_async(slow, in_flight=5).to("out")
    out = run(builder, PAIRS, seed=seed)
    assert sorted(out, key=lambda pair: pair[1]) == PAIRS
    for key in {key for key, _ in PAIRS}:
        assert [v for k, v in out if k == key] == [v for k, v in PAIRS if k == key]
    assert peak == 5


def test_results_go_on_through_state_and_further_async_nodes() -> None:
    async def add_one(value: int) -> int:
        await asyncio.sleep(1)
        return value + 1

    builder = StreamsBuilder()
    stream = builder.stream("in").map_values_async(add_one).map_values_async(add_one)
    stream.group_by_key().reduce(max).to_stream().to("out")
    assert run(builder, [("a", 1), ("a", 5), ("a", 3)]) == [("a", 3), ("a", 7), ("a", 7)]


def test_a_failing_record_is_retried_and_nothing_is_lost() -> None:
    attempts: dict[int, int] = {}

    async def flaky(value: int) -> int:
        attempts[value] = attempts.get(value, 0) + 1
        if value % 3 == 0 and attempts[value] < 3:
            raise ConnectionError("try again")
        return value

    builder = StreamsBuilder()
    builder.stream("in").map_values_async(flaky, retry=Retry(attempts=5, first=20)).to("out")
    out = run(builder, PAIRS)
    assert sorted(value for _, value in out) == list(range(70))
    assert attempts[3] == 3


def test_what_fails_for_good_goes_to_the_processing_handler() -> None:
    async def never(value: int) -> int:
        raise Terminal("no such thing")

    builder = StreamsBuilder()
    builder.stream("in").map_values_async(never, named="look-up").to("out")
    topology = builder.build()
    with TopologyTestDriver(topology) as driver:
        topic = driver.create_input_topic("in")
        with pytest.raises(ProcessingError, match="look-up: Terminal"):
            topic.pipe_input("k", 1)
    options = TaskOptions(handlers=Handlers(processing=DeadLetterQueue("dead")))
    with TopologyTestDriver(topology, options=options) as driver:
        driver.create_input_topic("in").pipe_input("k", 1)
        letter = driver.create_output_topic("dead").read_record()
        assert (letter.key, letter.value) == (b"k", b"1")
        assert dict(letter.headers)["__streams.errors.exception"] == b"Terminal"


def test_a_call_that_never_returns_times_out() -> None:
    async def hangs(value: int) -> int:
        await asyncio.Event().wait()
        return value

    builder = StreamsBuilder()
    builder.stream("in").map_values_async(hangs, timeout=30, named="hang").to("out")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in")
        with pytest.raises(ProcessingError, match="hang: AttemptTimedOut"):
            topic.pipe_input("k", 1)


def test_batches_are_handed_over_as_lists() -> None:
    sizes: list[int] = []

    async def double(records: list[Record[str, int]]) -> list[int]:
        sizes.append(len(records))
        return [record.value * 2 for record in records]

    builder = StreamsBuilder()
    batch = Batch(size=10, across_keys=True)
    builder.stream("in").batch_async(double, batch=batch, order="none").to("out")
    out = run(builder, PAIRS)
    assert sorted(value for _, value in out) == [2 * i for i in range(70)]
    assert max(sizes) == 10


def test_an_async_processor_uses_state_and_forwards_once_even_when_retried() -> None:
    class Total(AsyncProcessor[str, int, str, int]):
        failures = 0

        async def process(self, record: Record[str, int]) -> None:
            store = self.context.state_store("totals")
            total = (store.get(record.key) or 0) + record.value
            await asyncio.sleep(1 / (1 + record.value))
            self.context.forward(Record(record.key, total, record.timestamp))
            if record.value == 3 and Total.failures == 0:
                Total.failures += 1
                raise ConnectionError("after forwarding")
            store.put(record.key, total)
            assert self.context.record_metadata is not None
            assert self.context.record_metadata.topic == "in"

    builder = StreamsBuilder().add_state_store(StoreSpec(name="totals"))
    builder.stream("in").process_async(Total, "totals", retry=Retry(attempts=3)).to("out")
    out = run(builder, [("a", 1), ("b", 10), ("a", 2), ("a", 3)])
    assert [value for key, value in out if key == "a"] == [1, 3, 6]
    assert [value for key, value in out if key == "b"] == [10]


def test_a_resource_is_opened_once_and_closed_at_the_end() -> None:
    events: list[str] = []

    @asynccontextmanager
    async def pool() -> AsyncIterator[str]:
        events.append("opened")
        yield "pool"
        events.append("closed")

    async def ask(value: int, resource: str) -> str:
        return f"{resource} {value}"

    builder = StreamsBuilder()
    builder.stream("in").map_values_async(ask, resource=pool).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in")
        topic.pipe_input("k", 1)
        topic.pipe_input("k", 2)
        assert driver.create_output_topic("out").read_values_to_list() == ["pool 1", "pool 2"]
        assert events == ["opened"]
    assert events == ["opened", "closed"]


def test_a_plain_function_runs_on_threads() -> None:
    def swap(key: Any, value: Any) -> Any:
        return value, key

    builder = StreamsBuilder()
    builder.stream("in").map_async(swap).to("out")
    assert run(builder, [("a", "x")]) == [("x", "a")]


def test_options_that_cannot_work_are_refused_when_built() -> None:
    async def same(value: int) -> int:
        return value

    stream = StreamsBuilder().stream("in")
    with pytest.raises(ConfigurationError, match="in_flight"):
        stream.map_values_async(same, in_flight=0)
    with pytest.raises(ConfigurationError, match="batch_async"):
        stream.map_values_async(same, batch=Batch())


def test_what_an_attempt_that_failed_has_sent_does_not_leave() -> None:
    class Flaky(AsyncProcessor[Any, Any, Any, Any]):
        tried = 0

        async def process(self, record: Record[Any, Any]) -> None:
            self.context.send("sent", record.key, record.value)
            self.context.forward(record)
            Flaky.tried += 1
            if Flaky.tried == 1:
                raise ConnectionError

    builder = StreamsBuilder()
    builder.stream("in").process_async(Flaky, retry=Retry(attempts=2)).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in").pipe_input("a", 1)
        assert Flaky.tried == 2
        assert driver.create_output_topic("sent").read_key_values_to_list() == [(b"a", b"1")]
        assert driver.create_output_topic("out").read_key_values_to_list() == [("a", 1)]


def test_an_async_processor_may_be_called_with_time() -> None:
    class Ticking(AsyncProcessor[Any, Any, Any, Any]):
        def init(self, context: ProcessorContext[Any, Any]) -> None:
            super().init(context)
            assert context.record_metadata is None
            self.seen = context.state_store("seen")
            context.schedule(10, "wall_clock_time", self.tick)

        async def process(self, record: Record[Any, Any]) -> None:
            self.seen.put(record.key, record.value)

        def tick(self, now: int) -> None:
            for key, value in self.seen.all():
                self.context.forward(Record(key, value, now))
                self.context.send("ticks", key, now)

    topology = Topology().add_source("IN", "in").add_async_processor("T", Ticking, "IN")
    topology.add_state_store(StoreSpec(name="seen"), "T").add_sink("OUT", "out", "T")
    with TopologyTestDriver(topology) as driver:
        driver.create_input_topic("in").pipe_input("a", 1)
        driver.advance_wall_clock_time(10)
        assert driver.create_output_topic("out").read_record() == Record("a", 1, 10)
        assert driver.create_output_topic("ticks").read_key_value() == (b"a", b"10")


def test_a_result_of_the_wrong_form_goes_to_the_processing_handler() -> None:
    async def no_pair(key: str, value: int) -> Any:
        return value or (key, value)

    builder = StreamsBuilder()
    builder.stream("in").map_async(no_pair, named="M").to("out")
    options = TaskOptions(handlers=Handlers(processing=DeadLetterQueue("dead")))
    with TopologyTestDriver(builder.build(), options=options) as driver:
        driver.create_input_topic("in").pipe_key_value_list([("a", 1), ("b", 0)])
        assert driver.create_output_topic("dead").read_key_value() == (b"a", b"1")
        assert driver.create_output_topic("out").read_key_values_to_list() == [("b", 0)]


LANES = Lanes.of(Buckets({"Platinum": 70, "Gold": 30}), strict=True)


def lane_of(key: str, value: object) -> str:
    return "Platinum" if key.startswith("P") else "Gold"


@pytest.mark.parametrize("lanes", [LANES, Lanes.of(Buckets({"Platinum": 70, "Gold": 30}))])
@pytest.mark.parametrize("seed", seeds(5))
def test_lanes_decide_between_keys_and_never_inside_one(lanes: Lanes, seed: int) -> None:
    async def slow(value: int) -> int:
        await asyncio.sleep(0.1 + value % 3 / 10)
        return value

    # a key's records are of both lanes, whatever its name
    pairs = [(f"{'GP'[n % 5 > 2]}{n % 4}", n) for n in range(200)]
    builder = StreamsBuilder()
    builder.stream("in").map_values_async(
        slow, in_flight=4, lanes=lanes, lane=lambda key, value: value % 2
    ).to("out")
    out = run(builder, pairs, seed=seed)
    assert sorted(out, key=lambda pair: pair[1]) == pairs
    for key in {key for key, _ in pairs}:
        assert [v for k, v in out if k == key] == [v for k, v in pairs if k == key]


def test_strict_lanes_of_an_async_node_call_the_urgent_first() -> None:
    async def same(value: int) -> int:
        await asyncio.sleep(1)
        return value

    pairs = [(f"Gold-{n}", n) for n in range(5)] + [(f"Platinum-{n}", n) for n in range(5)]
    builder = StreamsBuilder()
    stream = builder.stream("in")
    stream.map_values_async(same, in_flight=1, lanes=LANES, lane=lane_of).to("out")
    called = [lane_of(key, value) for key, value in run(builder, pairs)]
    assert called == ["Platinum"] * 5 + ["Gold"] * 5


def test_a_lane_that_does_not_exist_goes_to_the_processing_handler() -> None:
    async def same(value: int) -> int:
        return value

    builder = StreamsBuilder()
    stream = builder.stream("in")
    stream.map_values_async(same, lanes=LANES, lane=lambda key, value: key).to("out")
    with pytest.raises(ProcessingError, match="BadLane"):
        run(builder, [("Silver", 1)])


def test_lanes_and_a_record_s_lane_go_together() -> None:
    async def same(value: int) -> int:
        return value

    stream = StreamsBuilder().stream("in")
    with pytest.raises(ConfigurationError, match="used together"):
        stream.map_values_async(same, lanes=LANES)
    with pytest.raises(ConfigurationError, match="used together"):
        stream.map_values_async(same, lane=lane_of)
