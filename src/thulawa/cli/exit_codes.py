"""Exit codes, and errors of the library as one message without a traceback."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import typer

from thulawa.errors import (
    ConfigurationError,
    ThulawaError,
)

__all__ = ["EXIT_CODES", "FAILED", "INTERRUPTED", "MISUSED", "explained"]

FAILED = 1
MISUSED = 2
INTERRUPTED = 130
EXIT_CODES = (
    "Exit codes: 0 done; 1 it could not be done, or something that is needed is missing; "
    "2 used wrongly (options, arguments, input); 130 interrupted."
)

P = ParamSpec("P")
R = TypeVar("R")


def explained(command: Callable[P, R]) -> Callable[P, R]:
    """Print errors of the library on standard error without a traceback, and exit with a code."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except ConfigurationError as error:
            raise _ended(str(error), MISUSED) from error
        except ThulawaError as error:
            raise _ended(str(error), FAILED) from error
        except KeyboardInterrupt as error:
            raise _ended("interrupted", INTERRUPTED) from error

    return run


def _ended(reason: str, code: int) -> typer.Exit:
    typer.secho(reason, err=True, fg="red")
    return typer.Exit(code)
