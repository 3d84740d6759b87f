"""The options of an engine: frozen value objects, checked when created.

Each one covers one concern; `Options` joins them and rejects combinations that cannot work, with
the reason and what to do instead. Times are seconds.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from math import inf
from typing import Literal, TypeAlias

from thulawa.engine.checks import check_types, require
from thulawa.engine.work_items import WorkItem
from thulawa.priority.buckets import Buckets

Order: TypeAlias = Literal["key", "partition", "none", "emit"]
EmitOrder: TypeAlias = Literal["finished", "partition"]
Unkeyed: TypeAlias = Literal["ordered", "parallel"]
OnError: TypeAlias = Literal["fail", "drop", "dead_letter", "column"]

_DEFAULT_IN_FLIGHT = 100
_STEEPEST = 1_000  # to the power of 64 it is still a float
_LOWEST_TOLERANCE = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How many records, bytes and keys may have arrived and not be finished (backpressure).

    Intake stops when a bound is reached and resumes when what is held has fallen to
    ``resume_at`` of it. Parked records (waiting for a retry) have an allowance of their own and
    count against the bounds only beyond it. ``keys`` bounds the keys that hold a record, with
    order="key" or "emit"; the other contracts do not use keys.
    """

    records: int = 10_000
    bytes: int = 64 * 1024 * 1024
    keys: int = 10_000
    parked: int = 1_000
    resume_at: float = 0.7

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("records", "bytes", "keys"):
            require(getattr(self, name) >= 1, f"Bounds.{name} must be at least 1")
        require(self.parked >= 0, "Bounds.parked must not be negative")
        require(0 <= self.resume_at < 1, "Bounds.resume_at must be in [0, 1)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often and when a failed record is retried: exponential backoff with jitter.

    The n-th backoff is ``min(first * factor ** (n - 1), longest)``, shortened at random by up to
    ``jitter`` of itself, so that records that failed together are not retried together.
    ``on`` selects the exceptions that are retried; `Terminal` never is, `Overload` always is and
    does not count as an attempt.
    """

    attempts: int = 1
    first: float = 0.1
    factor: float = 2.0
    longest: float = 30.0
    jitter: float = 0.5
    on: type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool] = Exception

    def __post_init__(self) -> None:
        check_types(self)
        require(
            not isinstance(self.on, type) or issubclass(self.on, Exception),
            f"Retry.on must be a class of Exception, several, or a function, not {self.on!r}",
        )
        require(self.attempts >= 1, "Retry.attempts must be at least 1 (1: no retry)")
        require(self.first >= 0, "Retry.first must not be negative")
        require(
            1 <= self.factor <= _STEEPEST,
            "Retry.factor must be in [1, 1000]: backoff never shrinks",
        )
        require(self.longest >= self.first, "Retry.longest must be at least Retry.first")
        require(0 <= self.jitter <= 1, "Retry.jitter must be in [0, 1]")

    def backoff(self, failures: int, chance: float) -> float:
        """Return the seconds before the next attempt; ``chance`` is random, in [0, 1)."""
        # the exponent is capped because 2.0 ** 1024 is an OverflowError
        full = min(self.first * self.factor ** min(failures - 1, 64), self.longest)
        return full * (1 - self.jitter * chance)

    def covers(self, error: Exception) -> bool:
        """Return whether this error is retried."""
        if isinstance(self.on, type | tuple):
            return isinstance(error, self.on)
        return self.on(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """Make no calls for a key of which ``after`` records in a row failed for good.

    For ``seconds`` its records fail without a call, as ``on_error`` says; then one is tried
    again. At most ``keys`` failing keys are remembered, the oldest evicted first. Calls of the key
    that are in flight already (order="emit", or the rest of a batch) are not cancelled.
    """

    after: int = 3
    seconds: float = 60.0
    keys: int = 10_000

    def __post_init__(self) -> None:
        check_types(self)
        require(self.after >= 1, "Quarantine.after must be at least 1")
        require(self.seconds > 0, "Quarantine.seconds must be positive")
        require(self.keys >= 1, "Quarantine.keys must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Call the function with a list of up to ``size`` records.

    ``across_keys=False``: all of one key. A batch that is not full waits up to ``linger``.
    With ``target`` the size adapts: one more record after each full batch that took less
    than ``target`` seconds, a tenth less after one that took more.

    A batch that raises as a whole is retried as a whole; when its attempts are used up, each
    record is retried alone, with all its attempts again.
    """

    size: int = 100
    linger: float = 0.0
    across_keys: bool = False
    target: float | None = None

    def __post_init__(self) -> None:
        check_types(self)
        require(self.size >= 1, "Batch.size must be at least 1")
        require(0 <= self.linger < inf, "Batch.linger must be finite and not negative")
        require(self.target is None or self.target > 0, "Batch.target must be positive, or None")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Start at most ``per_second`` calls a second, ``burst`` at once after a pause.

    This is the rate of one engine, and each running Spark task has its own engine. ``share`` is
    this engine's part of a rate that several tasks share, also of the burst (but at least one
    call). The split is static: a task cannot use what another leaves.
    """

    per_second: float
    burst: float = 1.0
    share: float = 1.0

    def __post_init__(self) -> None:
        check_types(self)
        require(self.per_second > 0, "Rate.per_second must be positive")
        require(self.burst >= 1, "Rate.burst must be at least 1, or no call ever starts")
        require(0 < self.share <= 1, "Rate.share must be in (0, 1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleFlight:
    """Make one call for records with equal requests that are in flight at the same time.

    ``by`` returns the request of a record (hashable). With a cache passed to the engine, results
    are cached by request too.
    """

    by: Callable[[WorkItem], Hashable]

    def __post_init__(self) -> None:
        check_types(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One priority. ``reserved`` is the fraction of the permits for which it has precedence.

    Precedence, not a partition: a lane with fewer calls in flight than its whole reserved permits
    is served first when a permit is free, but no permit is kept idle for it and no running call
    is cancelled. A fraction of a permit is granted over time, as a share of the starts.
    """

    name: str
    weight: float = 1.0
    reserved: float = 0.0

    def __post_init__(self) -> None:
        check_types(self)
        require(bool(self.name.strip()), "a lane needs a name")
        require(0 < self.weight < inf, f"lane {self.name!r}: weight must be positive and finite")
        require(0 <= self.reserved <= 1, f"lane {self.name!r}: reserved must be in [0, 1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """Priorities, the most urgent first; ``WorkItem.lane`` is an index into ``lanes``.

    While several lanes have work, they share the starts by weight, each at least what it has
    ``reserved``; with ``strict`` the first has all that the others have not reserved. A record
    that arrived ``ageing`` seconds ago is dispatched before all others as soon as its key is free,
    the oldest first.
    """

    lanes: tuple[Lane, ...] = field(default_factory=lambda: (Lane(name="default"),))
    strict: bool = False
    ageing: float | None = None

    def __post_init__(self) -> None:
        check_types(self)
        names = [lane.name for lane in self.lanes]
        require(bool(names), "Lanes needs at least one lane")
        require(len(set(names)) == len(names), f"lane names must differ: {names}")
        reserved = sum(lane.reserved for lane in self.lanes)
        require(reserved <= 1 + 1e-9, f"lanes reserve {reserved:.0%} of the permits")
        require(self.ageing is None or self.ageing > 0, "Lanes.ageing must be positive, or None")

    @classmethod
    def of(cls, buckets: Buckets, *, strict: bool = False, ageing: float | None = None) -> "Lanes":
        """Create a lane for each bucket, the most urgent first, with its share as its weight.

        Unless ``strict``, the share is reserved too: a bucket with work has precedence up to that
        fraction of the calls in flight, gets that fraction of the starts over time however low the
        limit is, and all of them while no other bucket has work.

        >>> [lane.name for lane in Lanes.of(Buckets({"Platinum": 70, "Gold": 30})).lanes]
        ['Platinum', 'Gold']
        """
        shares = dict(Buckets.of(buckets).shares)
        lanes = (
            Lane(name=name, weight=shares[name], reserved=0 if strict else shares[name] / 100)
            for name in buckets.urgency
        )
        return cls(lanes=tuple(lanes), strict=strict, ageing=ageing)

    def indexes(self) -> dict[object, int]:
        """Return the index of each lane, by its name and by its index."""
        known: dict[object, int] = {}
        for index, lane in enumerate(self.lanes):
            known |= {lane.name: index, index: index}
        return known


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptive:
    """Adapt the concurrency limit to the server's capacity; ``observe`` only reports a limit.

    ``tolerance`` is the latency, relative to that of an idle server, at which the limit is cut.
    """

    mode: Literal["observe", "enforce"] = "enforce"
    initial: int = 20
    minimum: int = 1
    maximum: int = 1_000
    tolerance: float = 1.25

    def __post_init__(self) -> None:
        require(str(self.mode) != "off", "to switch the adaptive limit off, leave Adaptive out")
        check_types(self)
        require(
            1 <= self.minimum <= self.initial <= self.maximum,
            "1 <= minimum <= initial <= maximum must hold, not "
            f"{self.minimum}, {self.initial}, {self.maximum}",
        )
        require(
            _LOWEST_TOLERANCE <= self.tolerance < inf,
            f"tolerance is a ratio of latencies of at least {_LOWEST_TOLERANCE}, not "
            f"{self.tolerance}: any less and noise alone would cut the limit",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """All options of an engine.

    ``in_flight`` is the concurrency limit, unless ``adaptive`` sets it. ``timeout`` bounds one
    attempt, ``deadline`` all attempts of a record. ``resource_timeout`` bounds the opening and the
    closing of the resource.
    """

    name: str = "engine"
    order: Order = "key"
    emit: EmitOrder = "finished"
    unkeyed: Unkeyed = "ordered"
    in_flight: int = _DEFAULT_IN_FLIGHT
    adaptive: Adaptive | None = None
    bounds: Bounds = field(default_factory=Bounds)
    lanes: Lanes = field(default_factory=Lanes)
    retry: Retry = field(default_factory=Retry)
    timeout: float | None = None
    deadline: float | None = None
    on_error: OnError = "fail"
    quarantine: Quarantine | None = None
    batch: Batch | None = None
    rate: Rate | None = None
    single_flight: SingleFlight | None = None
    resource_timeout: float = 60.0

    def __post_init__(self) -> None:
        check_types(self, prefix="")
        require(self.resource_timeout > 0, "resource_timeout must be positive")
        require(self.in_flight >= 1, "in_flight must be at least 1")
        for name in ("timeout", "deadline"):
            seconds = getattr(self, name)
            require(seconds is None or seconds > 0, f"{name} must be positive, or None")
        self._check_combinations()

    def _check_combinations(self) -> None:
        keyed = self.order in ("key", "emit")
        observes = self.adaptive is None or self.adaptive.mode == "observe"
        require(
            observes or self.in_flight == _DEFAULT_IN_FLIGHT,
            f"in_flight={self.in_flight} has no effect where the limit adapts: "
            "use Adaptive(initial=..., maximum=...), or Adaptive(mode='observe')",
        )
        require(
            self.unkeyed == "ordered" or keyed,
            f"unkeyed={self.unkeyed!r} has no effect with order={self.order!r}, which does not "
            "look at keys: leave it out, or use order='key' or 'emit'",
        )
        require(
            self.quarantine is None or self.on_error != "fail",
            "quarantine needs on_error='drop', 'dead_letter' or 'column': "
            "with 'fail' the first terminal error ends the run",
        )
        require(
            self.quarantine is None or keyed,
            "quarantine needs order='key' or 'emit': the other orders do not use keys",
        )
        require(
            self.batch is None or self.batch.across_keys or self.order in ("key", "partition"),
            "same-key batches need order='key' or 'partition'; "
            "use Batch(across_keys=True) where order does not matter",
        )
        require(
            self.order != "emit" or self.emit == "finished",
            "order='emit' emits results in key order; for partition order use "
            "order='none', emit='partition'",
        )
