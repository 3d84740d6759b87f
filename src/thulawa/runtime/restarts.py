"""What an application does after an error: stop, or start again with back-off."""

from dataclasses import dataclass
from typing import Any

from thulawa.core.durations import Duration, milliseconds
from thulawa.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Start again after an error, each time twice as late, at most ``attempts`` times in a row.

    A run that lasts longer than ``longest`` counts as a success: the next error starts over.
    """

    first: Duration = "1 s"
    longest: Duration = "1 minute"
    attempts: int = 10

    def __post_init__(self) -> None:
        milliseconds(self.first, name="first")
        milliseconds(self.longest, name="longest")
        if type(self.attempts) is not int or self.attempts < 0:
            raise ConfigurationError(
                f"attempts must be a whole number from 0, not {self.attempts!r}"
            )


def policy_of(answer: Any) -> Any:
    """Return what is to be done after an error; raise `ConfigurationError` for no answer."""
    if answer == "restart":
        return Restart()
    if answer == "stop" or isinstance(answer, Restart) or callable(answer):
        return answer
    raise ConfigurationError(
        f'on_error is {answer!r}: use "stop", "restart", a Restart or a function that answers '
        'with "stop" or "restart"'
    )
