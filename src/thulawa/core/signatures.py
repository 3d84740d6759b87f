"""What functions of users can be called with."""

import inspect
from collections.abc import Callable
from typing import Any

__all__ = ["accepts"]


def accepts(function: Callable[..., Any], count: int) -> bool:
    """Return whether a function can be called with so many arguments, as far as can be known.

    >>> accepts(lambda row, client=None: row, 1), accepts(lambda: None, 1)
    (True, False)
    """
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # of a builtin that does not tell
        return True
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True
