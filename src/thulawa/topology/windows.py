"""Window definitions: size, advance and grace.

All are frozen and in milliseconds; ``of`` accepts durations such as ``"5 s"``.
"""

from dataclasses import dataclass, replace

from thulawa.core.durations import Duration, milliseconds
from thulawa.core.records import Window
from thulawa.errors import ConfigurationError


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
        """Create tumbling windows of a size."""
        length = milliseconds(size, name="size")
        if length == 0:
            raise ConfigurationError("a window needs a size of at least 1 ms")
        return cls(length, length, milliseconds(grace, name="grace"))

    def advance_by(self, advance: Duration) -> "TimeWindows":
        """Return hopping windows that begin every ``advance``, at most the size."""
        step = milliseconds(advance, name="advance")
        if not 0 < step <= self.size:
            raise ConfigurationError(
                f"advance must be from 1 to the window size ({self.size} ms), not {step} ms"
            )
        return replace(self, advance=step)

    def with_grace(self, grace: Duration) -> "TimeWindows":
        """Return windows that accept records this late."""
        return replace(self, grace=milliseconds(grace, name="grace"))

    @property
    def retention(self) -> int:
        """How long a window must be stored."""
        return self.size + self.grace

    def windows_for(self, timestamp: int) -> list[Window]:
        """Return the windows that contain a time, the earliest first."""
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
        """Create windows of records at most ``difference`` apart."""
        apart = milliseconds(difference, name="difference")
        return cls(apart, milliseconds(grace, name="grace"))

    @property
    def size(self) -> int:
        """The length of a window, whose end is included."""
        return self.difference

    @property
    def retention(self) -> int:
        """How long a window must be stored: new windows need their left neighbour."""
        return 2 * self.difference + self.grace


@dataclass(frozen=True, slots=True)
class SessionWindows:
    """Sessions [first, last] of records, separated by more than ``gap``."""

    gap: int
    grace: int = 0

    @classmethod
    def of(cls, gap: Duration, *, grace: Duration = 0) -> "SessionWindows":
        """Create sessions that end after ``gap`` without a record."""
        pause = milliseconds(gap, name="gap")
        if pause == 0:
            raise ConfigurationError("a session needs a gap of at least 1 ms")
        return cls(pause, milliseconds(grace, name="grace"))

    @property
    def retention(self) -> int:
        """How long a session must be stored after its end."""
        return self.gap + self.grace


@dataclass(frozen=True, slots=True)
class JoinWindows:
    """Join records of two streams if right - left is within [-before, after].

    >>> JoinWindows.of("5 s").with_before(0)
    JoinWindows(before=0, after=5000, grace=0)
    """

    before: int
    after: int
    grace: int = 0

    @classmethod
    def of(cls, difference: Duration, *, grace: Duration = 0) -> "JoinWindows":
        """Create windows for records at most ``difference`` apart, in either order."""
        apart = milliseconds(difference, name="difference")
        return cls(apart, apart, milliseconds(grace, name="grace"))

    def with_before(self, before: Duration) -> "JoinWindows":
        """Return windows in which the other record is at most this much earlier."""
        return replace(self, before=milliseconds(before, name="before"))

    def with_after(self, after: Duration) -> "JoinWindows":
        """Return windows in which the other record is at most this much later."""
        return replace(self, after=milliseconds(after, name="after"))

    @property
    def retention(self) -> int:
        """How long a record must be stored for the other side."""
        return self.before + self.after + self.grace
