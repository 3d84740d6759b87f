"""Inspect the signatures of users' functions."""

import inspect
from collections.abc import Callable
from typing import Any


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
