"""What a scheduler remembers, and how a key becomes ready.

The scheduler is written in five steps, each a file that builds on the one before: its state
(here), `settling` (what becomes of records), `ending` (what becomes of a call that ended),
`starting` (which call starts next) and `scheduler` (events in, instructions out).
"""

from collections.abc import Hashable, MutableMapping
from random import Random
from typing import Any, TypeAlias

from thulawa.engine.adaptive import AdaptiveLimit
from thulawa.engine.batching import BatchSize
from thulawa.engine.emission import Emission
from thulawa.engine.events import Instruction
from thulawa.engine.lanes import ReadyKeys
from thulawa.engine.ledger import Ledger
from thulawa.engine.limits import FixedLimit, Limit
from thulawa.engine.model import Outcome, Ticket
from thulawa.engine.options import Options
from thulawa.engine.queues import KeyQueue, KeyRule
from thulawa.engine.rates import TokenBucket
from thulawa.engine.retries import FailingKeys, Judge
from thulawa.engine.single_flight import Answers
from thulawa.engine.statistics import Histogram
from thulawa.engine.timers import Timers

__all__ = ["ABANDONED", "Counters", "Memory", "Plan", "State"]

ABANDONED = 0  # no attempt has this number

# what each key of a call goes on with: tickets to be retried and when, or what waits behind
Plan: TypeAlias = dict[KeyQueue, tuple[list[Ticket], float] | None]


class Counters:
    """What has happened so far."""

    __slots__ = ("dropped", "failed", "overloads", "retries", "succeeded", "taken", "timeouts")

    def __init__(self) -> None:
        self.taken = 0
        self.succeeded = 0
        self.failed = 0
        self.dropped = 0
        self.retries = 0
        self.overloads = 0
        self.timeouts = 0


class Memory:
    """What an engine has learned, and keeps from one run to the next."""

    __slots__ = ("batch_size", "bucket", "failing", "limit")

    def __init__(
        self, options: Options, *, limit: Limit | None = None, random: Random | None = None
    ) -> None:
        self.limit = limit or _limit(options, random or Random(0))
        self.bucket = TokenBucket(options.rate)
        self.batch_size = None if options.batch is None else BatchSize(options.batch)
        self.failing = None if options.quarantine is None else FailingKeys(options.quarantine)


class State:
    """The parts of a scheduler.

    A key in ``queues`` is in exactly one of four states: ready (in ``ready``), taken up (by a
    call in ``calls`` or by a follower), parked (until its timer), or lingering for a batch.
    ``make_ready`` lets a key be chosen that has a record at its head and nothing taken up.

    ``calls`` holds a permit for each call that runs, with its attempt, or `ABANDONED`. Of an
    abandoned call the results are decided; what its keys go on with once it is gone is in
    ``abandoned``.

    What the options ask of each call is worked out once: in a ``plain`` engine a call needs
    nothing but a permit to start; in a ``bare`` one it also needs nothing but its result to
    end; in an ``equipped`` one a start takes a token, a place in a lane or a time-out besides.
    """

    # slots, because beyond thirty attributes an instance dictionary loses its fast path
    __slots__ = (
        "abandoned",
        "across",
        "adapts",
        "answers",
        "bare",
        "batch_due",
        "batch_size",
        "bucket",
        "by_lane",
        "calls",
        "counters",
        "draining",
        "emission",
        "equipped",
        "failing",
        "following",
        "gated",
        "judge",
        "key_of",
        "latency",
        "ledger",
        "limit",
        "linger",
        "make_ready",
        "now",
        "options",
        "others",
        "outcomes",
        "plain",
        "queues",
        "ready",
        "ready_records",
        "residence",
        "several_lanes",
        "starts",
        "stopped",
        "timed",
        "timers",
    )

    def __init__(
        self,
        options: Options,
        *,
        memory: Memory | None = None,
        cache: MutableMapping[Hashable, Any] | None = None,
        random: Random | None = None,
    ) -> None:
        random = random or Random(0)
        memory = memory or Memory(options, random=random)
        self.options = options
        self.limit = memory.limit
        self.bucket = memory.bucket
        self.batch_size = memory.batch_size
        self.failing = memory.failing
        self.key_of = KeyRule(options.order, options.unkeyed, len(options.lanes.lanes))
        self.queues: dict[Hashable, KeyQueue] = {}
        self.ready = ReadyKeys(options.lanes)
        self.ready_records = 0
        self.calls: dict[Ticket, int] = {}
        self.abandoned: dict[Ticket, Plan] = {}
        self.following = 0
        self.ledger = Ledger(options.bounds)
        self.emission = Emission(options, self.ledger, self.key_of)
        self.timers = Timers()
        self.answers = None if options.sharing is None else Answers(options.sharing, cache)
        self.judge = Judge(options, random)
        self.counters = Counters()
        self.latency = Histogram()
        self.residence = Histogram()
        lanes = len(options.lanes.lanes)
        self.by_lane = [Histogram() for _ in range(lanes)] if lanes > 1 else [self.residence]
        self.now = 0.0
        self.draining = False
        self.stopped = False
        self.gated = memory.bucket.gates
        self.timed = options.timeout is not None or options.deadline is not None
        self.several_lanes = len(options.lanes.lanes) > 1
        self.adapts = not isinstance(memory.limit, FixedLimit)
        self.equipped = self.gated or self.timed or self.several_lanes
        self.make_ready = self.ready.add if options.batch is None else self.make_batch_ready
        self.plain = not (
            options.batch or options.sharing or options.quarantine or options.deadline
        )
        self.bare = self.plain and not (self.adapts or self.several_lanes or self.emission.reorders)
        self.across = options.batch is not None and options.batch.across_keys
        self.linger = 0.0 if options.batch is None else options.batch.linger
        self.batch_due = float("-inf")
        # what the event being handled leads to
        self.starts: list[Ticket] = []
        self.outcomes: list[Outcome] = []
        self.others: list[Instruction] = []

    def size(self) -> int:
        """Give how many records a call may take now."""
        return 1 if self.batch_size is None else self.batch_size.now

    def make_batch_ready(self, queue: KeyQueue) -> None:
        """Let a key be chosen, at once or when its batch has filled up; retries do not wait."""
        if self.linger:
            if self.across:
                if queue.retries:
                    self.batch_due = self.now
                elif not self.ready.count:
                    self.batch_due = self.now + self.linger
            elif not (self.draining or queue.retries or len(queue) >= self.size()):
                queue.linger = self.timers.add(self.now + self.linger, self.lingered, queue)
                return
        if self.across:
            self.ready_records += len(queue)
        self.ready.add(queue)

    def stop_lingering(self, queue: KeyQueue) -> None:
        """Have a key wait no longer for a fuller batch."""
        assert queue.linger is not None
        self.timers.cancel(queue.linger)
        self.lingered(queue)

    def lingered(self, queue: KeyQueue) -> None:
        """Let a key be chosen whose time of waiting for a fuller batch is over."""
        queue.linger = None
        self.ready.add(queue)

    def release(self, queue: KeyQueue) -> None:
        """Let a key go on that has nothing taken up any more."""
        queue.taken = 0
        if queue.head is None and not queue.retries:
            del self.queues[queue.key]
        elif not self.stopped:
            self.make_ready(queue)


def _limit(options: Options, random: Random) -> Limit:
    if options.adaptive is None:
        return FixedLimit(options.in_flight)
    return AdaptiveLimit(options.adaptive, options.in_flight, random)
