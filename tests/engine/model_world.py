"""The environment of a scheduler: records that arrive, calls that end, and the end of a run."""

from collections.abc import Callable
from random import Random
from typing import Any

from tests.engine.model_driver import Call, Drive
from tests.engine.model_rules import watch
from tests.engine.strategies import AWKWARD, BAD_KEYS, ERRORS, KEYS
from thulawa.engine.options import Options
from thulawa.engine.work_items import WorkItem
from thulawa.errors import Overload
from thulawa.testing import OrderOracle


class World:
    """A checked run and the records that are still to arrive."""

    def __init__(self, of_options: Options, *, cached: bool, seed: int = 0) -> None:
        self.of = Drive(of_options, cache={} if cached else None, seed=seed)
        self.oracle: OrderOracle = watch(self.of, cached=cached)
        self.of.begin()
        self.offset = 0

    def record(
        self,
        key: Any,
        value: int = 0,
        timestamp: int = 0,
        size: int = 0,
        lane: int = 0,
        gap: int = 1,
    ) -> WorkItem:
        """Return the next record of the partition."""
        self.offset += gap
        return WorkItem(self.offset, key, value, timestamp, size, lane)

    def arrive(self, made: list[WorkItem]) -> None:
        """Answer the pull with as many records as it allows; discard the others."""
        pull = self.of.pull
        assert pull is not None
        taken, size = [], 0
        for record in made[: pull.records]:
            if size >= pull.bytes:
                break
            taken.append(record)
            size += record.size
        self.of.arrive(*taken)

    def end(self, call: Call, outcomes: list[Any]) -> None:
        """End a call; ``outcomes`` says how, per record where the function is given a batch."""
        tried = call.attempt
        results = [
            outcome if isinstance(outcome, Exception) else f"{ticket.record.value}#{tried}"
            for ticket, outcome in zip(call.tickets, _endless(outcomes), strict=False)
        ]
        if self.of.options.batch is not None:
            self.of.return_batch(call, results)
        elif isinstance(results[0], Exception):
            self.of.fail(call, results[0])
        else:
            self.of.succeed(call, result=results[0])

    def finish(self) -> None:
        """Check that without faults the run ends soon."""
        of = self.of
        if of.aborted is not None and not of.cancelled:
            of.cancel()
        for _ in range(20 * len(of.scheduler.unfinished()) + 50):
            if of.drained or of.cancelled:
                break
            self._go_on()
        assert of.drained or of.cancelled, f"no end in sight: {of.scheduler.statistics()}"
        self.oracle.check_complete()
        if of.drained and not of.scheduler.state.cancelled:
            of.stop_abandoned()
            assert not of.scheduler.state.queues
            assert not of.scheduler.state.calls
            assert (
                of.scheduler.state.backpressure.records
                == of.scheduler.state.backpressure.bytes
                == 0
            )

    def _go_on(self) -> None:
        of = self.of
        if not of.scheduler.state.draining:
            of.drain()
        elif of.outbox:
            of.deliver()
        elif of.running:
            self.end(next(iter(of.running.values())), ["ok"])
        elif of.abandoned:
            of.stop_abandoned()
        else:
            of.tick()
        if of.aborted is not None:
            of.cancel()


def _endless(outcomes: list[Any]) -> list[Any]:
    return outcomes * 10


def play(world: World, random: Random, total: int) -> None:
    """Do ``total`` random actions, then let the run end."""
    of = world.of
    for _ in range(total):
        if of.aborted is not None or of.drained:
            break
        random.choice(_possible(of, random))(world, random)
    if random.random() < 0.1:
        of.cancel()
        if of.pull is not None:
            world.arrive([world.record("late")])
    world.finish()


def _possible(of: Drive, random: Random) -> list[Callable[[World, Random], None]]:
    """Return the actions that are possible now, likely ones several times."""
    acts: list[Callable[[World, Random], None]] = []
    if of.pull is not None:
        acts += [_arrive] * 2
    if of.running:
        acts += [_end] * 4
    if of.abandoned:
        acts += [_give_way] * 2
    if of.outbox:
        acts += [_deliver]
    if of.wake is not None:
        acts += [_tick]
    if of.over and random.random() < 0.1:
        acts += [_answer_late]
    return acts


def _arrive(world: World, random: Random) -> None:
    lanes = len(world.of.options.lanes.lanes)
    made = []
    for _ in range(random.randint(0, 8)):
        key = random.choice(BAD_KEYS if random.random() < 0.02 else KEYS)
        value = AWKWARD if random.random() < 0.01 else random.randint(0, 3)
        lane = lanes if random.random() < 0.005 else random.randrange(lanes)
        gap = random.choice((1, 1, 1, 5))
        made.append(
            world.record(key, value, random.randint(0, 50), random.randint(0, 5), lane, gap)
        )
    world.arrive(made)


def _end(world: World, random: Random) -> None:
    call = random.choice(list(world.of.running.values()))
    wrong = random.random()
    if wrong < 0.15:
        world.of.fail(call, random.choice(ERRORS)())
    elif wrong < 0.17 and world.of.options.batch is not None:
        world.of.return_batch(call, random.choice(([], None, "x")))
    else:
        faulty = 0.1 if world.of.options.batch is not None else 0.0
        world.end(
            call,
            [random.choice(ERRORS)() if random.random() < faulty else "ok" for _ in call.tickets],
        )


def _deliver(world: World, random: Random) -> None:
    world.of.deliver(random.randint(1, len(world.of.outbox)))


def _tick(world: World, random: Random) -> None:
    world.of.tick(late=random.choice((0.0, 0.0, 0.01, 0.2)))


def _give_way(world: World, random: Random) -> None:
    call = random.choice(list(world.of.abandoned.values()))
    if random.random() < 0.5:
        world.of.stop_call(call)
    else:
        world.of.return_late(call, random.choice(("too late", ValueError("too late"))))


def _answer_late(world: World, random: Random) -> None:
    late = random.choice(("too late", ValueError("too late"), Overload(retry_after=9.0)))
    world.of.return_late(random.choice(world.of.over), late)
