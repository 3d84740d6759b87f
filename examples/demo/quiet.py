"""Keep what Spark and its libraries print away from the terminal."""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

__all__ = ["noise_to", "tail"]


@contextmanager
def noise_to(path: Path) -> Iterator[tuple[TextIO, TextIO]]:
    """Send standard output and error to a file; give what they were, to write to on purpose.

    Processes that are started meanwhile, such as Spark's JVM, inherit the file and write to it
    for as long as they live.
    """
    with ExitStack() as stack:
        noise = stack.enter_context(path.open("a"))
        kept: list[TextIO] = []
        for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
            stream.flush()
            before = os.dup(number)
            kept.append(stack.enter_context(os.fdopen(before, "w", buffering=1)))
            os.dup2(noise.fileno(), number)
            stack.callback(os.dup2, before, number)
            stack.callback(stream.flush)
        yield kept[0], kept[1]


def tail(path: Path, lines: int = 20) -> str:
    """Give the last lines of a file."""
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
