"""The user's line of code, for errors that are found later than they were made."""

import sys
from pathlib import Path

_PACKAGE = str(Path(__file__).parents[1])


def caller() -> str:
    """Return the nearest line outside the library in the call stack, as ``file:line``."""
    frame = sys._getframe(1)  # noqa: SLF001 inspect.stack() reads source files and is slow
    # "<string>" is the file name of methods that dataclasses generate.
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_PACKAGE, "<string>")):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
