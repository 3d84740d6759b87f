"""Concurrency limits: the protocol, the fixed limit, and the options of the adaptive one.

The algorithm of the adaptive limit is in `adaptive`.
"""

from dataclasses import dataclass
from math import inf
from typing import Final, Literal, Protocol, TypeAlias

from thulawa.engine.checks import check_types, require

Verdict: TypeAlias = Literal["success", "failure", "overload"]

LOWEST_TOLERANCE: Final = 1.05


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
            LOWEST_TOLERANCE <= self.tolerance < inf,
            f"tolerance is a ratio of latencies of at least {LOWEST_TOLERANCE}, not "
            f"{self.tolerance}: any less and noise alone would cut the limit",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitReport:
    """The limit in force (``permits``), the limit the algorithm proposes, and the reason.

    ``baseline`` and ``latency`` are in seconds; ``changes`` counts moves of the proposed limit.
    """

    mode: Literal["off", "observe", "enforce"]
    permits: int
    proposed: float
    baseline: float | None = None
    latency: float | None = None
    reason: str
    changes: int = 0


class Limit(Protocol):
    """The highest number of calls in flight, ``permits``, adapted to finished calls."""

    permits: int

    def observe(self, latency: float, verdict: Verdict, in_flight: int, now: float) -> None:
        """Account for a finished call; ``in_flight`` counts the calls at its end, with itself."""

    def report(self) -> LimitReport:
        """Return the limit and the reason for it."""


class FixedLimit:
    """A limit that does not change."""

    def __init__(self, permits: int) -> None:
        require(permits >= 1, f"the limit must be at least 1, not {permits}")
        self.permits = permits

    def observe(self, latency: float, verdict: Verdict, in_flight: int, now: float) -> None:
        """Do nothing."""

    def report(self) -> LimitReport:
        """Return the fixed limit."""
        return LimitReport(
            mode="off", permits=self.permits, proposed=float(self.permits), reason="fixed"
        )
