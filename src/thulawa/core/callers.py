"""The user's code: the line that called the library, and the signatures of functions."""

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from thulawa.errors import TopologyError

_PACKAGE = str(Path(__file__).parents[1])


def caller() -> str:
    """Return the nearest line outside the library in the call stack, as ``file:line``."""
    frame = sys._getframe(1)  # noqa: SLF001 inspect.stack() reads source files and is slow
    # "<string>" is the file name of methods that dataclasses generate.
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_PACKAGE, "<string>")):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def topology_error(message: str) -> TopologyError:
    """Return the error of a wrong program, at the user's line."""
    return TopologyError(message, where=caller())


def accepts(function: Callable[..., Any], count: int) -> bool:
    """Return whether a function can be called with ``count`` positional arguments.

    True for builtins without a signature.

    >>> accepts(lambda row, client=None: row, 1), accepts(lambda: None, 1)
    (True, False)
    """
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # a builtin without a signature
        return True
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True
