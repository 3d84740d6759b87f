"""The state of a scheduler: one object, each attribute explained where it is declared.

`SchedulerState` holds data only. What happens to it is in modules of functions, each using those
before it: `outcomes` (a record is final or parked, its key becomes ready), `completion` (a call
ends), `dispatch` (calls start), and `scheduler`, which maps events to these functions.
"""

from collections.abc import Hashable, MutableMapping
from dataclasses import InitVar, dataclass, field
from math import inf
from random import Random
from typing import Any, TypeAlias

from thulawa.engine.adaptive import AdaptiveLimit
from thulawa.engine.backpressure import Backpressure
from thulawa.engine.emission import Emission
from thulawa.engine.events import Instruction
from thulawa.engine.failure_policy import FailingKeys, FailurePolicy
from thulawa.engine.lanes import ReadyKeys
from thulawa.engine.limits import BatchSize, Limit, TokenBucket
from thulawa.engine.options import Options
from thulawa.engine.queues import KeyQueue, KeyRule
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

    def __init__(self, options: Options, random: Random) -> None:
        if options.adaptive is None:
            self.limit = Limit(options.in_flight)
        else:
            self.limit = AdaptiveLimit(options.adaptive, options.in_flight, random)
        self.bucket = TokenBucket(options.rate)
        self.batch_size = None if options.batch is None else BatchSize(options.batch)
        self.failing_keys = None if options.quarantine is None else FailingKeys(options.quarantine)


# Slots also because attribute access slows down beyond thirty entries of an instance dict.
@dataclass(slots=True, eq=False)
class SchedulerState:
    """The state of a scheduler.

    A key in ``queues`` is in exactly one of four states: ready (in ``ready``), active (a call in
    ``calls`` or a follower works on it), parked (until its retry is due), or lingering (until its
    batch is full).
    """

    options: Options
    learned: InitVar[LearnedState]
    cache: InitVar[MutableMapping[Hashable, Any] | None]
    random: InitVar[Random]

    # Fixed when the scheduler is created.
    key_of: KeyRule = field(init=False)  # maps a record to the key of its queue
    failure_policy: FailurePolicy = field(init=False)  # decides whether and when to retry
    adaptive: bool = field(init=False)  # whether the limit learns from finished calls
    timed: bool = field(init=False)  # whether calls have a timer, for a timeout or a deadline
    several_lanes: bool = field(init=False)
    across_keys: bool = field(init=False)  # whether a batch may hold records of several keys
    linger: float = field(init=False)  # seconds for which a batch that is not full waits
    # No batch, single flight, quarantine or deadline: one record, one call.
    simple_calls: bool = field(init=False)
    # Simple calls, fixed limit, one lane, no reordering: completed in bulk.
    simple_completion: bool = field(init=False)

    # Learned, shared with later runs.
    limit: Limit = field(init=False)  # ``limit.permits`` calls may run at once
    bucket: TokenBucket = field(init=False)  # limits the rate of starts
    batch_size: BatchSize | None = field(init=False)  # None: a call is over one record
    failing_keys: FailingKeys | None = field(init=False)  # None: no quarantine

    # Records and calls.
    queues: dict[Hashable, KeyQueue] = field(default_factory=dict)  # of keys that hold a record
    ready: ReadyKeys = field(init=False)  # in the order in which they are dispatched
    ready_records: int = 0  # in the queues of ready keys, where batches go across keys
    calls: dict[Ticket, int] = field(default_factory=dict)  # lead ticket: attempt, or ABANDONED
    abandoned: dict[Ticket, RetryPlan] = field(default_factory=dict)  # done once the call stops
    following: int = 0  # tickets that wait for another ticket's result (single flight)
    single_flight: SingleFlightGroup | None = field(init=False)
    backpressure: Backpressure = field(init=False)
    emission: Emission = field(init=False)  # results that are not delivered, and the frontier

    # Time.
    now: float = 0.0  # of the event being handled; never goes back
    timers: Timers = field(default_factory=Timers)  # functions (state, subject) and when to call
    wake_at: float = inf  # time of the last `WakeAt`, infinite once it has come
    rate_timer: Timer | None = None  # wakes dispatch when the bucket has a token again
    batch_timer: Timer | None = None  # wakes dispatch when a batch across keys is due
    batch_due: float = -inf  # when a batch across keys starts even if it is not full
    rate_limited: bool = field(init=False)  # by a rate, or a Retry-After
    start_extras: bool = field(init=False)  # a start costs a token, counts in a lane, or is timed

    # Progress of the run.
    pull_pending: bool = False  # a `Pull` was sent and not answered
    draining: bool = False  # no more records will arrive
    drained: bool = False  # `Drained` was sent
    stopped: bool = False  # the run failed or was cancelled: no call starts any more
    cancelled: bool = False  # events other than `Arrived` are ignored

    # Results of the event being handled.
    starts: list[Ticket] = field(default_factory=list)  # lead tickets of the calls to start
    outcomes: list[Outcome] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)  # all others, in order

    # Statistics.
    counters: Counters = field(default_factory=Counters)
    latency: Histogram = field(default_factory=Histogram)  # from the start of a call to its end
    residence: Histogram = field(default_factory=Histogram)  # from arrival to emission
    residence_by_lane: list[Histogram] = field(init=False)

    def __post_init__(
        self,
        learned: LearnedState,
        cache: MutableMapping[Hashable, Any] | None,
        random: Random,
    ) -> None:
        options, lanes, batch = self.options, len(self.options.lanes.lanes), self.options.batch
        flight = options.single_flight
        self.key_of = KeyRule(options.order, options.unkeyed, lanes)
        self.failure_policy = FailurePolicy(options, random)
        self.limit = learned.limit
        self.bucket = learned.bucket
        self.batch_size = learned.batch_size
        self.failing_keys = learned.failing_keys
        self.ready = ReadyKeys(options.lanes)
        self.single_flight = None if flight is None else SingleFlightGroup(flight, cache)
        self.backpressure = Backpressure(options.bounds)
        self.emission = Emission(options, self.backpressure, self.key_of)
        self.adaptive = learned.limit.adapts
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
        self.residence_by_lane = [Histogram() for _ in range(lanes)]
        if not self.several_lanes:
            self.residence_by_lane = [self.residence]

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
