"""The state of a scheduler: one object, each attribute explained where it is declared.

`SchedulerState` holds data only. What happens to it is in modules of functions, each using those
before it: `readiness` (a key becomes ready), `outcomes` (a record's result is final), `retry`
(a record is retried), `completion` (a call ends), `dispatch` (calls start), and `scheduler`,
which maps events to these functions.
"""

from collections.abc import Hashable, MutableMapping
from dataclasses import dataclass
from random import Random
from typing import Any, TypeAlias

from thulawa.engine.adaptive import AdaptiveLimit
from thulawa.engine.backpressure import Backpressure
from thulawa.engine.batching import BatchSize
from thulawa.engine.emission import Emission
from thulawa.engine.events import Instruction
from thulawa.engine.failure_policy import FailingKeys, FailurePolicy
from thulawa.engine.lanes import ReadyKeys
from thulawa.engine.limits import FixedLimit, Limit
from thulawa.engine.options import Options
from thulawa.engine.queues import KeyQueue, KeyRule
from thulawa.engine.rates import TokenBucket
from thulawa.engine.single_flight import SingleFlightGroup
from thulawa.engine.statistics import Histogram
from thulawa.engine.timers import Timer, Timers
from thulawa.engine.work_items import Outcome, Ticket

ABANDONED = 0  # in place of an attempt; attempts count from 1

# For each key of a call: the tickets to retry and when, or None if the key is free.
RetryPlan: TypeAlias = dict[KeyQueue, tuple[list[Ticket], float] | None]


@dataclass(slots=True)
class Counters:
    """Totals since the run began, as in `Statistics`."""

    arrived: int = 0
    succeeded: int = 0
    failed: int = 0
    dropped: int = 0
    retries: int = 0
    overloads: int = 0
    timeouts: int = 0


class LearnedState:
    """What an engine has learned about the server and its keys, kept from one run to the next."""

    __slots__ = {
        "batch_size": "the current batch size; None: calls take one record each",
        "bucket": "the token bucket of `Rate`, closed by Retry-After",
        "failing_keys": "keys that count towards quarantine, or are in it; None: no quarantine",
        "limit": "the concurrency limit, fixed or adaptive",
    }

    def __init__(
        self, options: Options, *, limit: Limit | None = None, random: Random | None = None
    ) -> None:
        self.limit = limit or _limit(options, random or Random(0))
        self.bucket = TokenBucket(options.rate)
        self.batch_size = None if options.batch is None else BatchSize(options.batch)
        self.failing_keys = None if options.quarantine is None else FailingKeys(options.quarantine)


class SchedulerState:
    """The state of a scheduler.

    A key in ``queues`` is in exactly one of four states: ready (in ``ready``), active (a call in
    ``calls`` or a follower works on it), parked (until its retry is due), or lingering (until its
    batch is full).
    """

    # Slots also because attribute access slows down beyond thirty entries of an instance dict.
    __slots__ = {  # noqa: RUF023 grouped by subject
        # fixed when the scheduler is created
        "options": "the engine's options",
        "key_of": "maps a record to the key of its queue, by the order contract",
        "failure_policy": "decides whether and when a failed record is retried",
        "adaptive": "whether the limit learns from finished calls",
        "timed": "whether calls have a timer, for a timeout or a deadline",
        "several_lanes": "whether there is more than one lane",
        "across_keys": "whether a batch may hold records of several keys",
        "linger": "seconds for which a batch that is not full waits",
        "simple_calls": "no batch, single flight, quarantine or deadline: one record, one call",
        "simple_completion": "simple calls, fixed limit, one lane, no reordering: bulk completion",
        # learned, shared with later runs
        "limit": "the concurrency limit: ``limit.permits`` calls may run at once",
        "bucket": "the token bucket that limits the rate of starts",
        "batch_size": "how many records a call may take; None: one",
        "failing_keys": "keys that failed last, for quarantine; None: no quarantine",
        # records and calls
        "queues": "the queue of each key that has a record waiting, active or parked",
        "ready": "the ready keys, in the order in which they are dispatched",
        "ready_records": "records in the queues of ready keys, where batches go across keys",
        "calls": "the lead ticket of each running call, with its attempt, or ABANDONED",
        "abandoned": "the lead ticket of each abandoned call, with what its keys do once it stops",
        "following": "tickets that wait for another ticket's result (single flight)",
        "single_flight": "requests in flight and cached results; None: no single flight",
        "backpressure": "records, bytes and keys held; closes intake at the bounds",
        "emission": "final results that are not delivered, and the frontier",
        # time
        "now": "time of the event being handled; never goes back",
        "timers": "functions of this module's kind, called when they are due",
        "wake_at": "time of the last `WakeAt`, infinite once it has come",
        "rate_timer": "wakes dispatch when the token bucket has a token again; None: not set",
        "batch_timer": "wakes dispatch when a batch across keys is due; None: not set",
        "batch_due": "time at which a batch across keys starts even if it is not full",
        "rate_limited": "whether the token bucket can delay a start: a rate, or a Retry-After",
        "start_extras": "whether a start takes a token, counts in its lane or sets a timer",
        # progress of the run
        "pull_pending": "a `Pull` was sent and not answered",
        "draining": "no more records will arrive",
        "drained": "`Drained` was sent",
        "stopped": "the run failed or was cancelled: no call starts any more",
        "cancelled": "the run was cancelled: events other than `Arrived` are ignored",
        # results of the event being handled
        "starts": "lead tickets of the calls to start",
        "outcomes": "outcomes to emit",
        "instructions": "all other instructions, in order",
        # statistics
        "counters": "totals since the run began",
        "latency": "seconds from the start of a call to its end",
        "residence": "seconds from a record's arrival to its emission",
        "residence_by_lane": "the same, lane by lane",
    }

    def __init__(
        self,
        options: Options,
        *,
        learned: LearnedState | None = None,
        cache: MutableMapping[Hashable, Any] | None = None,
        random: Random | None = None,
    ) -> None:
        random = random or Random(0)
        learned = learned or LearnedState(options, random=random)
        lanes = len(options.lanes.lanes)
        batch = options.batch
        self.options = options
        self.key_of = KeyRule(options.order, options.unkeyed, lanes)
        self.failure_policy = FailurePolicy(options, random)
        self.limit = learned.limit
        self.bucket = learned.bucket
        self.batch_size = learned.batch_size
        self.failing_keys = learned.failing_keys
        self.queues: dict[Hashable, KeyQueue] = {}
        self.ready = ReadyKeys(options.lanes)
        self.ready_records = 0
        self.calls: dict[Ticket, int] = {}
        self.abandoned: dict[Ticket, RetryPlan] = {}
        self.following = 0
        flight = options.single_flight
        self.single_flight = None if flight is None else SingleFlightGroup(flight, cache)
        self.backpressure = Backpressure(options.bounds)
        self.emission = Emission(options, self.backpressure, self.key_of)
        self.adaptive = not isinstance(learned.limit, FixedLimit)
        self.timed = options.timeout is not None or options.deadline is not None
        self.several_lanes = lanes > 1
        self.across_keys = batch is not None and batch.across_keys
        self.linger = 0.0 if batch is None else batch.linger
        self.simple_calls = not (batch or flight or options.quarantine or options.deadline)
        self.simple_completion = self.simple_calls and not (
            self.adaptive or self.several_lanes or self.emission.reorders
        )
        self.rate_limited = learned.bucket.limits
        self.start_extras = self.rate_limited or self.timed or self.several_lanes
        self.now = 0.0
        self.timers = Timers()
        self.wake_at = float("inf")
        self.rate_timer: Timer | None = None
        self.batch_timer: Timer | None = None
        self.batch_due = float("-inf")
        self.pull_pending = False
        self.draining = False
        self.drained = False
        self.stopped = False
        self.cancelled = False
        self.starts: list[Ticket] = []
        self.outcomes: list[Outcome] = []
        self.instructions: list[Instruction] = []
        self.counters = Counters()
        self.latency = Histogram()
        self.residence = Histogram()
        self.residence_by_lane = (
            [Histogram() for _ in range(lanes)] if lanes > 1 else [self.residence]
        )

    def max_batch(self) -> int:
        """Return how many records a call may take now."""
        return 1 if self.batch_size is None else self.batch_size.now

    def running(self) -> list[Ticket]:
        """Return the lead tickets of the calls that were not abandoned."""
        return [lead for lead, attempt in self.calls.items() if attempt != ABANDONED]

    def tracked_keys(self) -> int:
        """Return the number of keys held, 0 where the order contract does not use keys."""
        if self.options.order == "key":
            return len(self.queues)
        return len(self.emission.by_key or ())


def _limit(options: Options, random: Random) -> Limit:
    if options.adaptive is None:
        return FixedLimit(options.in_flight)
    return AdaptiveLimit(options.adaptive, options.in_flight, random)
