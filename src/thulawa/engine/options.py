"""What can be chosen about an engine: frozen value objects, checked when made.

Each one holds one concern; `Options` joins them and refuses combinations that cannot work,
with the reason and what to do instead. Times are seconds.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from math import inf
from typing import Literal, TypeAlias

from thulawa.engine.checks import check_types, refuse_unless
from thulawa.engine.limits import Adaptive
from thulawa.engine.model import Record
from thulawa.priority.buckets import Buckets

__all__ = [
    "Batch",
    "Bounds",
    "Emit",
    "Lane",
    "Lanes",
    "OnError",
    "Options",
    "Order",
    "Quarantine",
    "Rate",
    "Retry",
    "Sharing",
    "Unkeyed",
]

Order: TypeAlias = Literal["key", "partition", "none", "emit"]
Emit: TypeAlias = Literal["finished", "partition"]
Unkeyed: TypeAlias = Literal["ordered", "parallel"]
OnError: TypeAlias = Literal["fail", "drop", "dead_letter", "column"]

_DEFAULT_IN_FLIGHT = 100
_STEEPEST = 1_000  # to the power of 64 it is still a float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much may be taken in and not yet be finished.

    Intake stops when a bound is reached and resumes when what is held has fallen to
    ``resume_at`` of it. Parked records (waiting for a retry) have an allowance of their own:
    they take room from fresh records only beyond it. ``keys`` bounds those with a record on its
    way, where order="key" or "emit"; the other contracts know no keys.
    """

    records: int = 10_000
    bytes: int = 64 * 1024 * 1024
    keys: int = 10_000
    parked: int = 1_000
    resume_at: float = 0.7

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("records", "bytes", "keys"):
            refuse_unless(getattr(self, name) >= 1, f"Bounds.{name} must be at least 1")
        refuse_unless(self.parked >= 0, "Bounds.parked must not be negative")
        refuse_unless(0 <= self.resume_at < 1, "Bounds.resume_at must be in [0, 1)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often and when a failed record is tried again.

    The n-th wait is ``min(first * factor ** (n - 1), longest)``, shortened at random by up to
    ``jitter`` of itself, so that records that failed together do not come back together.
    ``on`` says which exceptions are worth another attempt; `Terminal` never is, `Overload`
    always is and is not counted.
    """

    attempts: int = 1
    first: float = 0.1
    factor: float = 2.0
    longest: float = 30.0
    jitter: float = 0.5
    on: type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool] = Exception

    def __post_init__(self) -> None:
        check_types(self)
        refuse_unless(
            not isinstance(self.on, type) or issubclass(self.on, Exception),
            f"Retry.on must be a class of Exception, several, or a function, not {self.on!r}",
        )
        refuse_unless(self.attempts >= 1, "Retry.attempts must be at least 1 (1: no retry)")
        refuse_unless(self.first >= 0, "Retry.first must not be negative")
        refuse_unless(
            1 <= self.factor <= _STEEPEST, "Retry.factor must be in [1, 1000]: waits never shrink"
        )
        refuse_unless(self.longest >= self.first, "Retry.longest must be at least Retry.first")
        refuse_unless(0 <= self.jitter <= 1, "Retry.jitter must be in [0, 1]")

    def wait(self, failures: int, chance: float) -> float:
        """Give the wait before the next attempt; ``chance`` is a random number in [0, 1)."""
        # the exponent is capped because 2.0 ** 1024 is an OverflowError
        full = min(self.first * self.factor ** min(failures - 1, 64), self.longest)
        return full * (1 - self.jitter * chance)

    def covers(self, error: Exception) -> bool:
        """Tell whether this error is worth another attempt."""
        if isinstance(self.on, type | tuple):
            return isinstance(error, self.on)
        return self.on(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """Stop calling for a key that ended ``after`` records in a row with a terminal error.

    For ``seconds`` its records get the error policy's answer without a call; then one is
    tried again. At most ``keys`` failing keys are remembered, the oldest forgotten first. Calls
    of the key that run already (order="emit", or the rest of a batch) are not called off.
    """

    after: int = 3
    seconds: float = 60.0
    keys: int = 10_000

    def __post_init__(self) -> None:
        check_types(self)
        refuse_unless(self.after >= 1, "Quarantine.after must be at least 1")
        refuse_unless(self.seconds > 0, "Quarantine.seconds must be positive")
        refuse_unless(self.keys >= 1, "Quarantine.keys must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Hand the function up to ``size`` records at a time.

    ``across_keys=False``: all of one key. A batch that is not full waits up to ``linger``.
    With ``target`` the size adapts: one more record after each full batch that took less
    than ``target`` seconds, a tenth less after one that took more.

    A batch that raises as a whole is retried as a whole; when its attempts are used up, each
    record is tried alone, with all its attempts again.
    """

    size: int = 100
    linger: float = 0.0
    across_keys: bool = False
    target: float | None = None

    def __post_init__(self) -> None:
        check_types(self)
        refuse_unless(self.size >= 1, "Batch.size must be at least 1")
        refuse_unless(0 <= self.linger < inf, "Batch.linger must be finite and not negative")
        refuse_unless(
            self.target is None or self.target > 0, "Batch.target must be positive, or None"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Start at most ``per_second`` calls a second, ``burst`` at once after a pause.

    This is the rate of one engine; each running task of Spark has an engine of its own.
    ``share`` is this engine's part of a rate that several tasks have in common, of the burst too
    (but never less than one call). The split is static: what one task leaves, no other gets.
    """

    per_second: float
    burst: float = 1.0
    share: float = 1.0

    def __post_init__(self) -> None:
        check_types(self)
        refuse_unless(self.per_second > 0, "Rate.per_second must be positive")
        refuse_unless(self.burst >= 1, "Rate.burst must be at least 1, or nothing ever starts")
        refuse_unless(0 < self.share <= 1, "Rate.share must be in (0, 1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """Let records that ask for the same thing share one call.

    ``by`` gives what a record asks for (hashable). Equal questions in flight at the same time
    are one call; with a cache handed to the engine its answers are kept there too.
    """

    by: Callable[[Record], Hashable]

    def __post_init__(self) -> None:
        check_types(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One priority. ``reserved`` is the part of the permits it has first call on.

    That is a preference, not a partition: a lane below the whole permits of its part goes first
    when one is free, but none is kept idle for it, and none is taken from a call that runs. What
    is not a whole permit, such as a part of a single one, it has in the course of time.
    """

    name: str
    weight: float = 1.0
    reserved: float = 0.0

    def __post_init__(self) -> None:
        check_types(self)
        refuse_unless(bool(self.name.strip()), "a lane needs a name")
        refuse_unless(
            0 < self.weight < inf, f"lane {self.name!r}: weight must be positive and finite"
        )
        refuse_unless(0 <= self.reserved <= 1, f"lane {self.name!r}: reserved must be in [0, 1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """Priorities, the most urgent first; ``Record.lane`` is an index into ``lanes``.

    While several have work, weighted lanes share starts by weight, each at least what it has
    ``reserved``; with ``strict`` the first has all that the others have not reserved.
    A record that came ``ageing`` seconds ago goes before everything as soon as its key is free, of
    several the one that came first.
    """

    lanes: tuple[Lane, ...] = field(default_factory=lambda: (Lane(name="default"),))
    strict: bool = False
    ageing: float | None = None

    def __post_init__(self) -> None:
        check_types(self)
        names = [lane.name for lane in self.lanes]
        refuse_unless(bool(names), "Lanes needs at least one lane")
        refuse_unless(len(set(names)) == len(names), f"lane names must differ: {names}")
        reserved = sum(lane.reserved for lane in self.lanes)
        refuse_unless(reserved <= 1 + 1e-9, f"lanes reserve {reserved:.0%} of the permits")
        refuse_unless(
            self.ageing is None or self.ageing > 0, "Lanes.ageing must be positive, or None"
        )

    @classmethod
    def of(cls, buckets: Buckets, *, strict: bool = False, ageing: float | None = None) -> "Lanes":
        """Make a lane of each bucket, the most urgent first, with its share as its weight.

        The share is reserved too: a bucket with work goes first up to that part of the calls,
        whatever the others have in flight; it has its part of them over time however few can be
        made at once, and all of them while it is alone.

        >>> [lane.name for lane in Lanes.of(Buckets({"Platinum": 70, "Gold": 30})).lanes]
        ['Platinum', 'Gold']
        """
        shares = dict(Buckets.of(buckets).shares)
        lanes = (
            Lane(name=name, weight=shares[name], reserved=0 if strict else shares[name] / 100)
            for name in buckets.urgency
        )
        return cls(lanes=tuple(lanes), strict=strict, ageing=ageing)

    def places(self) -> dict[object, int]:
        """Give the place of each lane, by its name and by its place."""
        known: dict[object, int] = {}
        for place, lane in enumerate(self.lanes):
            known |= {lane.name: place, place: place}
        return known


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Everything an engine can be told, one operator at a time.

    ``in_flight`` is the number of calls at once, unless ``adaptive`` finds it.
    ``resource_timeout`` is the number of seconds in which a resource must open, and must close.
    """

    name: str = "engine"
    order: Order = "key"
    emit: Emit = "finished"
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
    sharing: Sharing | None = None
    resource_timeout: float = 60.0

    def __post_init__(self) -> None:
        check_types(self, prefix="")
        refuse_unless(self.resource_timeout > 0, "resource_timeout must be positive")
        refuse_unless(self.in_flight >= 1, "in_flight must be at least 1")
        for name in ("timeout", "deadline"):
            seconds = getattr(self, name)
            refuse_unless(seconds is None or seconds > 0, f"{name} must be positive, or None")
        self._check_combinations()

    def _check_combinations(self) -> None:
        refuse_unless(
            self.adaptive is None
            or self.adaptive.mode == "observe"
            or self.in_flight == _DEFAULT_IN_FLIGHT,
            f"in_flight={self.in_flight} has no effect where the limit adapts: "
            "use Adaptive(initial=..., maximum=...), or Adaptive(mode='observe')",
        )
        refuse_unless(
            self.unkeyed == "ordered" or self.order in ("key", "emit"),
            f"unkeyed={self.unkeyed!r} has no effect with order={self.order!r}, which does not "
            "look at keys: leave it out, or use order='key' or 'emit'",
        )
        refuse_unless(
            self.quarantine is None or self.on_error != "fail",
            "quarantine needs on_error='drop', 'dead_letter' or 'column': "
            "with 'fail' the first terminal error ends the run",
        )
        refuse_unless(
            self.quarantine is None or self.order in ("key", "emit"),
            "quarantine needs order='key' or 'emit': it is about keys",
        )
        refuse_unless(
            self.batch is None or self.batch.across_keys or self.order in ("key", "partition"),
            "same-key batches need order='key' or 'partition'; "
            "use Batch(across_keys=True) where order does not matter",
        )
        refuse_unless(
            self.order != "emit" or self.emit == "finished",
            "order='emit' gives results in key order; for partition order use "
            "order='none', emit='partition'",
        )
