"""A simulated environment of the real driver, drawn from a seed, that checks every run.

A `World` draws options, records, latencies, faults, a source and a sink, runs the engine over
them, and records what the function, the source and the sink see. The order oracle fails where the
contract is broken; `CheckedScheduler` checks the scheduler after every event. The unfinished
records of a run are the input of the next one, until none is left.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from contextlib import asynccontextmanager
from math import inf
from random import Random
from typing import Any

from thulawa.engine import (
    Adaptive,
    Batch,
    Bounds,
    Engine,
    Lane,
    Lanes,
    Options,
    Outcome,
    Quarantine,
    Rate,
    Retry,
    Scheduler,
    SingleFlight,
    WorkItem,
)
from thulawa.engine.events import Event, Instruction
from thulawa.errors import (
    Overload,
    Retriable,
    Terminal,
)
from thulawa.testing import Latency, OrderOracle, Simulation, constant, lognormal, uniform

__all__ = ["World"]

STOP_TIMEOUT = 5.0


def value_of(record: WorkItem) -> Hashable:
    """Return the request of a record, for `SingleFlight`."""
    value: Hashable = record.value
    return value


def draw_options(random: Random, on_error: tuple[str, ...]) -> Options:
    """Draw random options, without the combinations that `Options` rejects."""
    chance = random.random
    order = random.choice(("key", "key", "key", "partition", "none", "emit"))
    batched = chance() < 0.3
    policy = random.choice(on_error)
    quarantined = policy != "fail" and order in ("key", "emit") and chance() < 0.2
    options: dict[str, Any] = {
        "order": order,
        "emit": "finished" if order == "emit" else random.choice(("finished", "partition")),
        "unkeyed": random.choice(
            ("ordered", "parallel" if order in ("key", "emit") else "ordered")
        ),
        **_limit(random),
        "bounds": _bounds(random),
        "lanes": _lanes(random) if chance() < 0.3 else Lanes(),
        "retry": _retry(random),
        "timeout": random.choice((0.5, 2.0)) if chance() < 0.6 else None,
        "deadline": random.choice((3.0, 10.0)) if chance() < 0.3 else None,
        "on_error": policy,
        "quarantine": Quarantine(after=2, seconds=1.0, keys=3) if quarantined else None,
        "batch": _batch(random, order) if batched else None,
        "rate": Rate(per_second=20, burst=random.choice((1, 5))) if chance() < 0.15 else None,
        "single_flight": SingleFlight(by=value_of) if chance() < 0.25 else None,
    }
    return Options(**options)


def _limit(random: Random) -> dict[str, Any]:
    if random.random() < 0.1:
        return {"adaptive": Adaptive(initial=3, maximum=20)}
    observed = Adaptive(mode="observe", initial=3, maximum=20)
    adaptive = observed if random.random() < 0.1 else None
    return {"in_flight": random.choice((1, 2, 5, 20)), "adaptive": adaptive}


def _bounds(random: Random) -> Bounds:
    return Bounds(
        records=random.choice((1, 7, 30, 1_000)),
        bytes=random.choice((5, 50, 10_000)),
        keys=random.choice((1, 4, 1_000)),
        parked=random.choice((0, 3, 1_000)),
        resume_at=random.choice((0.0, 0.7)),
    )


def _lanes(random: Random) -> Lanes:
    return Lanes(
        lanes=(Lane(name="urgent", weight=3, reserved=0.3), Lane(name="slow")),
        strict=random.random() < 0.5,
        ageing=random.choice((None, 0.5)),
    )


def _retry(random: Random) -> Retry:
    return Retry(
        attempts=random.choice((1, 2, 4)),
        first=random.choice((0.0, 0.0, 0.1, 1.0)),
        longest=2.0,
        jitter=random.choice((0.0, 0.5, 1.0)),
    )


def _batch(random: Random, order: str) -> Batch:
    return Batch(
        size=random.choice((1, 3, 10)),
        linger=random.choice((0.0, 0.2)),
        across_keys=order not in ("key", "partition") or random.random() < 0.5,
        target=random.choice((None, 0.3)),
    )


class CheckedScheduler(Scheduler):
    """A scheduler that is checked after every event."""

    def __init__(self, world: "World", options: Options, **parts: Any) -> None:
        super().__init__(options, **parts)
        self._world = world
        self._dropped_before = 0

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Handle the event, then check the state."""
        instructions = super().handle(event, now)
        held, counters = self.state.backpressure, self.state.counters
        allowed = held.bounds.records + held.bounds.parked
        assert held.records + held.parked <= allowed, "more is held than allowed"
        if counters.dropped != self._dropped_before:
            self._dropped_before = counters.dropped
            self._world.notice_drops({record.offset for record in self.unfinished()})
        for record in self.state.emission.unfinished():
            self._world.oracle.settled(record.offset)
        self._world.after_event(self)
        return instructions


class WatchedEngine(Engine):
    """An engine with a `CheckedScheduler`."""

    def __init__(self, world: "World", function: Callable[..., Any], options: Options) -> None:
        self._world = world
        cache: dict[Hashable, Any] | None = {} if world.random.random() < 0.5 else None
        if options.single_flight is None:
            cache = None
        super().__init__(
            function,
            options,
            resource=world.resource,
            cache=cache,
            stop_timeout=STOP_TIMEOUT,
            watchdog=False,  # its timer would hide a stall
            random=Random(world.seed),
        )

    def _new_scheduler(self) -> Scheduler:
        return CheckedScheduler(
            self._world,
            self.options,
            learned=self.learned,
            cache=self._cache,
            random=self._random,
        )


class World:
    """The environment of an engine, and what it has observed."""

    def __init__(
        self, simulation: Simulation, on_error: tuple[str, ...] = ("drop", "dead_letter", "column")
    ) -> None:
        self.now = simulation.now
        self.seed = simulation.seed
        self.random = random = simulation.random
        self.options = draw_options(random, on_error)
        self.oracle = OrderOracle(
            order=self.options.order,
            emit=self.options.emit,
            unkeyed=self.options.unkeyed,
            clock=simulation.now,
        )
        self.records = self._draw_records(random.choice((1, 10, 40)))
        self.position = 0  # of the source: records before it were read
        self.again: list[WorkItem] = []  # unfinished records of earlier runs, to be read first
        self.healed = False
        self.latency = self._draw_latency()
        self.source_latency = self._draw_pause()
        self.sink_latency = self._draw_pause()
        self.faults = random.random() < 0.6
        self.hangs = 0.1 if self.options.timeout or self.options.deadline else 0.0
        self.slow_to_stop = random.random() < 0.3
        self.events = 0
        self.on_event: dict[int, Callable[[], object]] = {}
        self.opened = self.closed = 0
        self.attempts: Counter[int] = Counter()
        self.running = 0
        self.ended_at: dict[int, float] = {}
        self.delivered: list[Outcome] = []
        self.dropped: set[int] = set()
        self.engine = WatchedEngine(self, self._function(), self.options)

    # --- random choices

    def _draw_records(self, count: int) -> list[WorkItem]:
        random = self.random
        keys = [None, *range(random.choice((1, 3, 10)))] if random.random() < 0.9 else [None]
        records = []
        offset = random.choice((0, 1_000))
        for _ in range(count):
            offset += random.choice((1, 1, 1, 5))
            key = random.choice(keys)
            if key is not None and random.random() < 0.5:
                key = f"key-{key}"
            lane = random.randrange(len(self.options.lanes.lanes))
            value, time, size = random.randrange(8), random.random(), random.randrange(4)
            records.append(WorkItem(offset, key, value, time, size, lane))
        return records

    def _draw_latency(self) -> Latency:
        models = (constant(0), constant(0.2), lognormal(0.1, 1), uniform(0, 0.5))
        return self.random.choice(models)

    def _draw_pause(self) -> Latency | None:
        return self.random.choice((None, constant(0), uniform(0, 0.3)))

    def heal(self) -> None:
        """Make every call succeed from now on."""
        self.healed = True
        self.latency = constant(0.01)

    # --- the function

    def _function(self) -> Callable[..., Any]:
        wrapped = self.oracle.wrap(self._work)

        async def function(records: Any, resource: object) -> Any:
            assert resource is self, "not the resource"
            assert self.opened > self.closed, "called without its resource"
            return await wrapped(records)

        return function

    async def _work(self, records: Any) -> Any:
        batch = records if isinstance(records, list) else [records]
        self.running += 1
        try:
            self._check_permits()
            await self._wait()
            results: list[Exception | None] = [self._answer(record) for record in batch]
        except asyncio.CancelledError:
            await self._stop_slowly()
            # the oracle would count a batch that returns too late as finished
            if isinstance(records, list) or self.random.random() < 0.7:
                raise
            results = [None]
        finally:
            self.running -= 1
        if isinstance(records, list):
            if any(results) and self.random.random() < 0.3:
                raise next(filter(None, results))
            return [error or record.value for record, error in zip(batch, results, strict=True)]
        if results[0] is not None:
            raise results[0]
        self.ended_at[records.offset] = self.now()
        return records.value

    async def _wait(self) -> None:
        if not self.healed and self.random.random() < self.hangs:
            await asyncio.sleep(inf)
        seconds = self.latency.sample(self.random)
        if seconds:
            await asyncio.sleep(seconds)

    def _answer(self, record: WorkItem) -> Exception | None:
        self.attempts[record.offset] += 1
        if self.healed or not self.faults:
            return None
        draw = self.random.random()
        if record.offset % 5 == 0 and self.attempts[record.offset] <= 2:
            return Retriable("fails twice")
        if draw < 0.05:
            return Overload(retry_after=self.random.choice((None, 0.3)))
        if draw < 0.1:
            return ValueError("now and then")
        return Terminal("never") if draw < 0.15 else None

    async def _stop_slowly(self) -> None:
        """Stop after a while, as a rollback does, or at once."""
        if self.slow_to_stop:
            await asyncio.sleep(self.random.choice((0, 0.1, 1.0)))

    def _check_permits(self) -> None:
        adaptive, top = self.options.adaptive, self.options.in_flight
        if adaptive is not None and adaptive.mode == "enforce":
            top = adaptive.maximum
        assert self.running <= top, f"{self.running} calls in flight, {top} allowed"

    @asynccontextmanager
    async def resource(self) -> AsyncIterator["World"]:
        """Open the resource, which is this world."""
        self.opened += 1
        await asyncio.sleep(0)
        yield self
        assert not self.running, "closed while it is used"
        self.closed += 1

    # --- the source

    def left(self) -> list[WorkItem]:
        """Return the records that were not read yet, or were returned as unfinished."""
        return self.again + self.records[self.position :]

    async def read(self, records: int, size: int) -> Sequence[WorkItem]:
        """Return the next records; when cancelled, mostly none."""
        assert records > 0
        assert size > 0
        try:
            if self.source_latency is not None:
                await self.source_latency(self.random)
        except asyncio.CancelledError:
            if self.random.random() < 0.7:
                raise  # else they are returned although cancelled
        count = self.random.randint(1, min(records, 10))
        chunk: list[WorkItem] = []
        for record in self.left()[:count]:
            chunk.append(record)
            self._hand_over(record)
            size -= record.size
            if size <= 0:
                break
        return chunk

    def iterate(self) -> Iterator[WorkItem]:
        """Yield record by record."""
        for record in self.left():
            self._hand_over(record)
            yield record

    async def iterate_async(self) -> AsyncIterator[WorkItem]:
        """Yield record by record, with pauses."""
        for record in self.left():
            if self.source_latency is not None:
                await self.source_latency(self.random)
            self._hand_over(record)
            yield record

    def _hand_over(self, record: WorkItem) -> None:
        self.oracle.arrived(record.offset, record.key)
        if self.again:
            assert self.again.pop(0) is record
        else:
            self.position += 1

    # --- the sink

    async def put(self, outcomes: list[Outcome]) -> None:
        """Accept the outcomes, sometimes although cancelled."""
        if self.sink_latency is None:
            self._check_promptness(outcomes)
        try:
            if self.sink_latency is not None:
                await self.sink_latency(self.random)
        except asyncio.CancelledError:
            if self.random.random() < 0.7:
                raise
        for outcome in outcomes:
            self.accept(outcome)

    def accept(self, outcome: Outcome) -> None:
        """Record that an outcome was delivered."""
        self.oracle.emitted(outcome.record.offset)
        self.delivered.append(outcome)
        if outcome.ok:
            assert outcome.result == outcome.record.value

    def _check_promptness(self, outcomes: list[Outcome]) -> None:
        """Check that a result that waits for nothing is delivered at the time at which it ends."""
        if self.options.emit == "finished" and self.options.order in ("key", "none"):
            for outcome in outcomes:
                ended = self.ended_at.get(outcome.record.offset)
                assert not outcome.ok or ended in (None, self.now()), "a result was not delivered"

    # --- checks of the scheduler

    def after_event(self, scheduler: Scheduler) -> None:
        """Validate the scheduler from time to time; do what is planned for this event."""
        self.events += 1
        if self.random.random() < 0.1:
            scheduler.validate()
        if (action := self.on_event.pop(self.events, None)) is not None:
            asyncio.get_running_loop().call_soon(action)

    def notice_drops(self, unfinished: set[int]) -> None:
        """Report records that the policy has dropped to the oracle."""
        emitted = {outcome.record.offset for outcome in self.delivered}
        waiting = {record.offset for record in self.left()}
        known = {record.offset for record in self.records}
        for offset in sorted(known - unfinished - emitted - waiting - self.dropped):
            self.oracle.dropped(offset)
            self.dropped.add(offset)

    # --- after a run

    async def calls_are_over(self) -> None:
        """Wait for calls that a run did not wait for because it was cancelled while it stopped."""
        while self.running:  # noqa: ASYNC110 virtual time
            await asyncio.sleep(0.1)

    def take_back(self) -> None:
        """Collect the unfinished records; all others must be finished."""
        returned = self.engine.unfinished
        offsets = [record.offset for record in returned]
        assert offsets == sorted(set(offsets)), (
            f"unfinished records out of order or twice: {offsets}"
        )
        for record in returned:
            self.oracle.returned_unprocessed(record.offset)
        self.again = returned + self.again
        self.oracle.check_complete()

    def check_end(self) -> None:
        """Check that all records are finished exactly once."""
        assert not self.left()
        self.oracle.check_complete()
        seen = Counter(outcome.record.offset for outcome in self.delivered)
        seen.update(self.dropped)
        assert seen == Counter(record.offset for record in self.records)
        assert self.running == 0
        others = asyncio.all_tasks() - {asyncio.current_task()}
        others = {task for task in others if not task.get_name().endswith("-resource")}
        assert not others, f"left over: {others}"
        engine = self.engine
        statistics = engine.statistics()
        assert statistics.in_flight == statistics.abandoned == statistics.keys == 0
        assert statistics.waiting == statistics.undelivered == 0
