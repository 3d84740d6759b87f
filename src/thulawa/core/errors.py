"""Every error the library raises or understands, in one tree.

::

    ThulawaError
    ├── ConfigurationError (ValueError)   an option or a combination is refused when it is made
    ├── Retriable                         raised by user functions: try this record again
    ├── Terminal                          raised by user functions: trying again is of no use
    ├── Overload                          raised by user functions: the other side is full
    └── RecordError                       one record could not be processed; says which and why
        ├── BadKey (TypeError)            its key cannot be hashed or does not equal itself
        ├── AttemptTimedOut (TimeoutError)
        ├── DeadlineExceeded (TimeoutError)
        ├── SelfCancelled                 the function raised CancelledError of its own
        ├── WrongResult (TypeError)       the function returned what it must not return
        └── Quarantined                   its key has failed too often to be tried now

The three that user functions raise are how a function tells the engine which class its
failure belongs to; any other exception is classed by the retry options.
"""

from collections.abc import Hashable

__all__ = [
    "AttemptTimedOut",
    "BadKey",
    "ConfigurationError",
    "DeadlineExceeded",
    "Overload",
    "Quarantined",
    "RecordError",
    "Retriable",
    "SelfCancelled",
    "Terminal",
    "ThulawaError",
    "WrongResult",
]


class ThulawaError(Exception):
    """The root of the tree."""


class ConfigurationError(ThulawaError, ValueError):
    """An option, or a combination of options, that cannot work."""


class Retriable(ThulawaError):
    """Raise it in a function to have the record tried again, by the retry options."""


class Terminal(ThulawaError):
    """Raise it in a function when trying again is of no use: the error policy answers."""


class Overload(ThulawaError):
    """Raise it when the other side is full (HTTP 429 or 503).

    The record is tried again, this does not count as one of its failures, and the adaptive
    limit gives way. With ``retry_after`` (seconds) no call at all starts before it is over.
    """

    def __init__(self, message: str = "overloaded", *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RecordError(ThulawaError):
    """One record could not be processed. Carries where it is and what to do about it."""

    action = "see the cause, then choose a retry or an error policy that fits it"

    def __init__(
        self,
        message: str,
        *,
        node: str | None = None,
        offset: int | None = None,
        key: Hashable = None,
        attempts: int = 0,
    ) -> None:
        super().__init__(message)
        self.node = node
        self.offset = offset
        self.key = key
        self.attempts = attempts

    def __str__(self) -> str:
        tried = f", after {self.attempts} attempts" if self.attempts > 1 else ""
        where = "" if self.offset is None else f" (record at offset {self.offset}{tried})"
        name = "" if self.node is None else f"{self.node}: "
        return f"{name}{super().__str__()}{where}; {self.action}"


class BadKey(RecordError, TypeError):
    """A key that cannot be hashed, or that does not equal itself (NaN): it has no order."""

    action = "use a key of str, bytes, int or a tuple of these"


class AttemptTimedOut(RecordError, TimeoutError):
    """One call took longer than ``timeout``."""

    action = "raise timeout, lower in_flight, or look at the service that was called"


class DeadlineExceeded(RecordError, TimeoutError):
    """All attempts together took longer than ``deadline``."""

    action = "raise deadline, or look at the service that was called"


class SelfCancelled(RecordError):
    """The function raised CancelledError although nobody had cancelled it."""

    action = "catch the cancellation inside the function, or raise an error that says what happened"


class WrongResult(RecordError, TypeError):
    """The function returned something it must not return."""

    action = "mend the function's return value"


class Quarantined(RecordError):
    """The record's key failed too often and is not called for a while."""

    action = "replay the dead letters of this key once its cause is mended"
