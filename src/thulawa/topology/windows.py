"""Windows over time: how long, how often, and how late a record may be.

All are frozen and in milliseconds; ``of`` takes durations as people write them.
"""

from dataclasses import dataclass, replace

from thulawa.core.durations import Duration, milliseconds
from thulawa.core.errors import ConfigurationError
from thulawa.core.records import Window

__all__ = ["JoinWindows", "SessionWindows", "SlidingWindows", "TimeWindows"]


@dataclass(frozen=True, slots=True)
class TimeWindows:
    """Windows [start, start + size) that begin every ``advance``: tumbling, or hopping.

    >>> TimeWindows.of("10 s").advance_by("5 s").windows_for(12_000)
    [Window(start=5000, end=15000), Window(start=10000, end=20000)]
    """

    size: int
    advance: int
    grace: int = 0

    @classmethod
    def of(cls, size: Duration, *, grace: Duration = 0) -> "TimeWindows":
        """Make tumbling windows of a size."""
        length = milliseconds(size, name="size")
        if length == 0:
            raise ConfigurationError("a window needs a size of at least 1 ms")
        return cls(length, length, milliseconds(grace, name="grace"))

    def advance_by(self, advance: Duration) -> "TimeWindows":
        """Make them hop: begin one every ``advance``, at most the size."""
        step = milliseconds(advance, name="advance")
        if not 0 < step <= self.size:
            raise ConfigurationError(
                f"advance must be from 1 to the window size ({self.size} ms), not {step} ms"
            )
        return replace(self, advance=step)

    def with_grace(self, grace: Duration) -> "TimeWindows":
        """Accept records this late."""
        return replace(self, grace=milliseconds(grace, name="grace"))

    @property
    def retention(self) -> int:
        """How long a window has to be kept."""
        return self.size + self.grace

    def windows_for(self, timestamp: int) -> list[Window]:
        """Return the windows a time falls into, the earliest first."""
        size, advance = self.size, self.advance
        first = max(0, timestamp - size + advance) // advance * advance
        return [Window(start, start + size) for start in range(first, timestamp + 1, advance)]


@dataclass(frozen=True, slots=True)
class SlidingWindows:
    """Windows [t - difference, t] and [t + 1, t + 1 + difference] around each record."""

    difference: int
    grace: int = 0

    @classmethod
    def of(cls, difference: Duration, *, grace: Duration = 0) -> "SlidingWindows":
        """Make windows that join records at most ``difference`` apart."""
        apart = milliseconds(difference, name="difference")
        return cls(apart, milliseconds(grace, name="grace"))

    @property
    def size(self) -> int:
        """The length of a window; its end belongs to it."""
        return self.difference

    @property
    def retention(self) -> int:
        """How long a window has to be kept: its left neighbour is needed to make it."""
        return 2 * self.difference + self.grace


@dataclass(frozen=True, slots=True)
class SessionWindows:
    """Stretches of activity [first, last], apart by more than ``gap``."""

    gap: int
    grace: int = 0

    @classmethod
    def of(cls, gap: Duration, *, grace: Duration = 0) -> "SessionWindows":
        """Make sessions that a pause of more than ``gap`` ends."""
        pause = milliseconds(gap, name="gap")
        if pause == 0:
            raise ConfigurationError("a session needs a gap of at least 1 ms")
        return cls(pause, milliseconds(grace, name="grace"))

    @property
    def retention(self) -> int:
        """How long a session has to be kept after its end."""
        return self.gap + self.grace


@dataclass(frozen=True, slots=True)
class JoinWindows:
    """Records of two streams join when right - left is within [-before, after].

    >>> JoinWindows.of("5 s").with_before(0)
    JoinWindows(before=0, after=5000, grace=0)
    """

    before: int
    after: int
    grace: int = 0

    @classmethod
    def of(cls, difference: Duration, *, grace: Duration = 0) -> "JoinWindows":
        """Join records at most ``difference`` apart, whichever came first."""
        apart = milliseconds(difference, name="difference")
        return cls(apart, apart, milliseconds(grace, name="grace"))

    def with_before(self, before: Duration) -> "JoinWindows":
        """Let the other record be at most this much earlier."""
        return replace(self, before=milliseconds(before, name="before"))

    def with_after(self, after: Duration) -> "JoinWindows":
        """Let the other record be at most this much later."""
        return replace(self, after=milliseconds(after, name="after"))

    @property
    def retention(self) -> int:
        """How long a record has to be kept for the other side."""
        return self.before + self.after + self.grace
