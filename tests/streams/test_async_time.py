"""Stream time behind async nodes: the same results as the same program without them."""

import asyncio
import random
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from thulawa.engine import Retry
from thulawa.errors import (
    ProcessingError,
    Terminal,
)
from thulawa.runtime.handlers import Handlers, log_and_continue
from thulawa.runtime.task import Task
from thulawa.runtime.task_options import TaskOptions
from thulawa.streams import (
    JoinWindows,
    KStream,
    Materialized,
    Processor,
    ProcessorContext,
    Record,
    SessionWindows,
    StoreSpec,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Topology,
)
from thulawa.testing import seeds
from thulawa.testing.loop import VirtualTimeLoop

# a step of a program: what stands for a call of a service
Lookup: TypeAlias = Callable[[KStream[Any, Any]], KStream[Any, Any]]
Batch: TypeAlias = dict[str, list[tuple[int, int, Any, Any, tuple[()]]]]

BAD = 13  # values that no attempt can process end with this


def plain(stream: KStream[Any, Any]) -> KStream[Any, Any]:
    """Do without a service what `service` does with one."""
    return stream.filter(lambda _, value: value % 100 != BAD).map_values(lambda value: value + 1000)


def service(seed: int) -> Lookup:
    """Return a step that takes a random time, fails at times, and for some records always."""
    chance = random.Random(seed)

    async def look_up(value: int) -> int:
        await asyncio.sleep(chance.expovariate(0.5))
        if value % 100 == BAD:
            raise Terminal("no such thing")
        if chance.random() < 0.3:
            raise RuntimeError("try again")
        return value + 1000

    retry = Retry(attempts=1000, first=1.0, longest=60.0)
    return lambda stream: stream.map_values_async(look_up, in_flight=50, retry=retry)


class Ticking(Processor[Any, Any, Any, Any]):
    """Forward every record with the stream time it sees, and the time of every punctuation."""

    def init(self, context: ProcessorContext[Any, Any]) -> None:
        super().init(context)
        context.schedule(5_000, "stream_time", self.tick)

    def process(self, record: Record[Any, Any]) -> None:
        self.context.forward(record.with_value((record.value, self.context.stream_time)))

    def tick(self, now: int) -> None:
        self.context.forward(Record("tick", self.context.stream_time, now))


WINDOW = TimeWindows.of("10 s", grace="5 s")


def counts(builder: StreamsBuilder, lookup: Lookup) -> None:
    counted = lookup(builder.stream("a")).group_by_key().windowed_by(WINDOW).count()
    counted.to_stream().to("out")


def final_counts(builder: StreamsBuilder, lookup: Lookup) -> None:
    counted = lookup(builder.stream("a")).group_by_key().windowed_by(WINDOW).count()
    counted.suppress(Suppressed.until_window_closes()).to_stream().to("out")


def sessions(builder: StreamsBuilder, lookup: Lookup) -> None:
    grouped = lookup(builder.stream("a")).group_by_key()
    window = SessionWindows.of("3 s", grace="2 s")
    grouped.windowed_by(window).count().to_stream().to("out")


def joins_streams(builder: StreamsBuilder, lookup: Lookup) -> None:
    left, right = lookup(builder.stream("a")), builder.stream("b")
    window = JoinWindows.of("4 s", grace="2 s")
    left.outer_join(right, lambda a, b: [a, b], window).to("out")


def joins_table(builder: StreamsBuilder, lookup: Lookup) -> None:
    table = builder.table("b", materialized=Materialized.as_("table"))
    lookup(builder.stream("a")).left_join(table, lambda a, b: [a, b]).to("out")


def joins_before_and_after(builder: StreamsBuilder, lookup: Lookup) -> None:
    table = builder.table("b", materialized=Materialized.as_("table"))
    stream = builder.stream("a").filter(lambda _, value: value % 3 > 0)
    window = JoinWindows.of("4 s", grace="2 s")
    joined = lookup(stream).join(builder.stream("c"), lambda a, c: a + c, window)
    joined.left_join(table, lambda a, b: [a, b]).to("out")


def two_in_a_line(builder: StreamsBuilder, lookup: Lookup) -> None:
    first = lookup(builder.stream("a")).merge(builder.stream("b"))
    second = lookup(first).merge(builder.stream("c"))
    second.group_by_key().windowed_by(WINDOW).count().to_stream().to("out")


def punctuates(builder: StreamsBuilder, lookup: Lookup) -> None:
    first = lookup(builder.stream("a").filter(lambda _, value: value % 5 > 0)).process(Ticking)
    first.to("out")
    lookup(first.filter(lambda key, _: key != "tick").map_values(lambda value: value[0])).process(
        Ticking
    ).to("out-2")


PROGRAMS = [
    counts,
    final_counts,
    sessions,
    joins_streams,
    joins_table,
    joins_before_and_after,
    two_in_a_line,
    punctuates,
]


def made(program: Callable[[StreamsBuilder, Lookup], None], lookup: Lookup) -> Topology:
    builder = StreamsBuilder()
    program(builder, lookup)
    return builder.build()


def input_batches(seed: int, topics: tuple[str, ...], count: int = 6) -> list[Batch]:
    """Return batches of records whose timestamps are up to 8 s behind the highest before."""
    chance = random.Random(seed)
    offsets = dict.fromkeys(topics, 0)
    batches: list[Batch] = []
    now = 0
    for _ in range(count):
        batch: Batch = {topic: [] for topic in topics}
        for _ in range(60):
            now += chance.randrange(400)
            topic = chance.choice(topics)
            time = max(0, now - chance.choice((0, 0, 0, 2_000, 8_000)))
            key = chance.choice("uvwxyz")
            batch[topic].append((offsets[topic], time, key, chance.randrange(10_000), ()))
            offsets[topic] += 1
        batches.append(batch)
    return batches


class Collected:
    """What a task sends."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any, Any, int]] = []

    def send(self, sink: Any, topic: str, key: Any, value: Any, timestamp: int, _: Any) -> None:
        self.sent.append((topic, key, value, timestamp))


def run(topology: Topology, batches: list[Batch], *, seed: int = 0) -> tuple[list[Any], int]:
    """Run batches, each by a task that resumes from the one before it; return outputs and drops."""
    (group,) = topology.subtopologies()
    topics = {topic for source in group.sources for topic in source.topics}
    options = TaskOptions(handlers=Handlers(processing=log_and_continue), commit="batch")
    collected, snapshot, dropped = Collected(), None, 0
    backings: dict[str, dict[Any, Any]] = {}
    loop = VirtualTimeLoop(seed=seed)
    for batch in batches:
        task = Task(
            group,
            topology,
            collected,
            options=options,
            backing=lambda name: backings.setdefault(name, {}),
            run_async=loop.run_until_complete,
            snapshot=snapshot,
        )
        for topic, records in batch.items():
            if topic in topics:
                task.add(topic, 0, records)
        task.run()
        snapshot = task.snapshot()
        dropped += sum(task.context.counts.values())
        task.close()
    loop.close()
    return collected.sent, dropped


def refused(batches: list[Batch], topics: set[str]) -> int:
    return sum(
        record[3] % 100 == BAD for batch in batches for topic in topics for record in batch[topic]
    )


@pytest.mark.parametrize("seed", seeds(5))
@pytest.mark.parametrize("program", PROGRAMS)
def test_async_nodes_change_no_result_of_what_follows(
    program: Callable[[StreamsBuilder, Lookup], None], seed: int
) -> None:
    batches = input_batches(seed, ("a", "b", "c"))
    expected, _ = run(made(program, plain), batches)
    assert len(expected) > 10
    sent, _ = run(made(program, service(seed)), batches, seed=seed)
    for topic in ("out", "out-2"):  # the order between topics is nobody's
        assert [one for one in sent if one[0] == topic] == [o for o in expected if o[0] == topic]


def test_nothing_is_late_because_a_result_overtook_it() -> None:
    chance = random.Random(1)
    records = [(n, n * 50, chance.choice("uvwxyz"), n * 100, ()) for n in range(1_880)]
    topology = made(counts, service(1))
    sent, dropped = run(topology, [{"a": records}])
    latest = {key: count for _, key, count, _ in sent}
    assert (sum(latest.values()), dropped) == (1_880, 0)


def test_a_record_that_fails_for_good_holds_no_time_back() -> None:
    batches = input_batches(7, ("a",))
    expected, dropped = run(made(counts, plain), batches)
    sent, dropped_too = run(made(counts, service(7)), batches)
    assert sent == expected
    assert dropped_too == dropped + refused(batches, {"a"})  # by the handler


def test_a_store_on_both_sides_of_an_async_node_is_no_obstacle() -> None:
    class Keeps(Processor[Any, Any, Any, Any]):
        def process(self, record: Record[Any, Any]) -> None:
            store = self.context.state_store("both")
            store.put(record.key, (store.get(record.key) or 0) + 1)
            self.context.forward(record)

    builder = StreamsBuilder().add_state_store(StoreSpec(name="both"))
    before = builder.stream("a").process(Keeps, "both")
    service(3)(before).process(Keeps, "both").to("out")
    batches = input_batches(3, ("a",))
    sent, _ = run(builder.build(), batches)
    records = sum(len(batch["a"]) for batch in batches)
    assert len(sent) == records - refused(batches, {"a"})


def test_results_leave_as_they_finish_where_nothing_keeps_time() -> None:
    async def wait(value: int) -> int:
        await asyncio.sleep(10 - value)
        return value

    builder = StreamsBuilder()
    builder.stream("a").map_values_async(wait, in_flight=10).to("out")
    records = [(n, n, f"k{n}", n, ()) for n in range(10)]
    sent, _ = run(builder.build(), [{"a": records}])
    assert [value for _, _, value, _ in sent] == [*reversed(range(10))]


def test_a_batch_fails_with_its_first_error_and_waits_for_no_other_call() -> None:
    calls = 0

    async def look_up(value: int) -> int:
        nonlocal calls
        calls += 1
        await asyncio.sleep(1)
        raise Terminal("no such thing")

    builder = StreamsBuilder()
    found = builder.stream("a").map_values_async(look_up, in_flight=5)
    found.group_by_key().windowed_by(WINDOW).count().to_stream().to("out")
    topology = builder.build()
    (group,) = topology.subtopologies()
    loop = VirtualTimeLoop(seed=0)
    task = Task(group, topology, Collected(), run_async=loop.run_until_complete)
    task.add("a", 0, [(n, n, f"k{n}", n, ()) for n in range(1_000)])
    with pytest.raises(ProcessingError):
        task.run()
    assert calls < 50
    task.close()
    loop.close()
