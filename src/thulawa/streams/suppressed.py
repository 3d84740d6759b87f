"""Suppressed: how long a table's updates are held, and what happens when the buffer is full."""

from dataclasses import dataclass, replace
from typing import Literal

from thulawa.core.durations import Duration, milliseconds
from thulawa.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Suppressed:
    """Hold updates until windows close, or for a time.

    >>> Suppressed.until_time_limit("5 s").with_max_records(1000).wait
    5000
    """

    until: Literal["window_close", "time"]
    wait: int = 0
    name: str | None = None
    max_records: int | None = None
    max_bytes: int | None = None
    when_full: Literal["emit", "fail"] = "emit"

    @classmethod
    def until_window_closes(cls) -> "Suppressed":
        """Emit the one final result of each window; fail when the buffer is full."""
        return cls(until="window_close", when_full="fail")

    @classmethod
    def until_time_limit(cls, wait: Duration) -> "Suppressed":
        """Emit the last update of each key this long, in stream time, after the first."""
        return cls(until="time", wait=milliseconds(wait, name="wait"))

    def with_name(self, name: str) -> "Suppressed":
        """Return the options with a name for the node, after which its store is named."""
        return replace(self, name=name)

    def with_max_records(self, records: int) -> "Suppressed":
        """Return the options with a limit of buffered keys."""
        if records < 0:
            raise ConfigurationError("max_records must not be negative")
        return replace(self, max_records=records)

    def with_max_bytes(self, size: int) -> "Suppressed":
        """Return the options with an approximate limit of buffered bytes."""
        if size < 0:
            raise ConfigurationError("max_bytes must not be negative")
        return replace(self, max_bytes=size)

    def emit_early_when_full(self) -> "Suppressed":
        """Return options that emit the oldest update early when the buffer is full."""
        if self.until == "window_close":
            raise ConfigurationError(
                "results cannot be final and early: use until_time_limit, or fail when full"
            )
        return replace(self, when_full="emit")

    def shut_down_when_full(self) -> "Suppressed":
        """Return options that fail when the buffer is full."""
        return replace(self, when_full="fail")
