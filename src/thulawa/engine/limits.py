"""How many calls may be in flight: what a limit is, the fixed one, and options of the adaptive one.

How the adaptive limit finds what the server bears is in `adaptive`.
"""

from dataclasses import dataclass
from math import inf
from typing import Final, Literal, Protocol, TypeAlias

from thulawa.engine.checks import check_types, refuse_unless

__all__ = ["Adaptive", "FixedLimit", "Limit", "LimitReport", "Verdict"]

Verdict: TypeAlias = Literal["success", "failure", "overload"]

LOWEST_TOLERANCE: Final = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptive:
    """Let the limit follow what the server bears; ``observe`` only reports where it would go.

    ``tolerance`` is the latency, relative to that of an idle server, at which the limit is cut.
    """

    mode: Literal["observe", "enforce"] = "enforce"
    initial: int = 20
    minimum: int = 1
    maximum: int = 1_000
    tolerance: float = 1.25

    def __post_init__(self) -> None:
        refuse_unless(
            str(self.mode) != "off", "to switch the adaptive limit off, leave Adaptive out"
        )
        check_types(self)
        refuse_unless(
            1 <= self.minimum <= self.initial <= self.maximum,
            "1 <= minimum <= initial <= maximum must hold, not "
            f"{self.minimum}, {self.initial}, {self.maximum}",
        )
        refuse_unless(
            LOWEST_TOLERANCE <= self.tolerance < inf,
            f"tolerance is a ratio of latencies of at least {LOWEST_TOLERANCE}, not "
            f"{self.tolerance}: any less and noise alone would cut the limit",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitReport:
    """Where the limit is, where it would be and why; latencies in seconds."""

    mode: Literal["off", "observe", "enforce"]
    permits: int
    would_be: float
    baseline: float | None = None
    latency: float | None = None
    why: str
    moves: int = 0


class Limit(Protocol):
    """The most calls in flight, ``permits``, as moved by what is observed of finished ones."""

    permits: int

    def observe(self, latency: float, verdict: Verdict, in_flight: int, now: float) -> None:
        """Take in a finished call; ``in_flight`` counts the calls at its end, itself included."""

    def report(self) -> LimitReport:
        """Say where the limit is and why."""


class FixedLimit:
    """A limit that never moves."""

    def __init__(self, permits: int) -> None:
        refuse_unless(permits >= 1, f"at least one call must be in flight, not {permits}")
        self.permits = permits

    def observe(self, latency: float, verdict: Verdict, in_flight: int, now: float) -> None:
        """Ignore the call."""

    def report(self) -> LimitReport:
        """Say that the limit is fixed."""
        return LimitReport(
            mode="off", permits=self.permits, would_be=float(self.permits), why="fixed"
        )
