"""Whose line of code it was: errors found after the fact name the user's own line."""

import sys
from pathlib import Path

__all__ = ["caller"]

_PACKAGE = str(Path(__file__).parents[1])


def caller() -> str:
    """Name the nearest line outside the library, as ``file:line``."""
    frame = sys._getframe(1)  # noqa: SLF001 inspect.stack() reads source files and is slow
    # "<string>" is where dataclasses keep the methods they make.
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_PACKAGE, "<string>")):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
