"""When the garbage collector is not to look."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["uncollected"]


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep the garbage collector from looking through a batch while it is being made.

    A batch makes hundreds of thousands of objects that no cycle holds; to look at them again
    and again took a third of its time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
