"""When the garbage collector is not to look."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

__all__ = ["settle", "uncollected"]

_ALL_AGAIN = 100
_calls = count(1)


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


def settle() -> None:
    """Keep the collector from what is there: modules, programs, stores. Call it before a task.

    Spark has a Python worker collect all garbage after each task, while the next one waits for it:
    40 ms and more for a worker's modules, and as much again for a large store. What is there when
    a task begins has outlived that. It may become garbage later, so once in a while nothing is kept
    from the collector.
    """
    if next(_calls) % _ALL_AGAIN:
        gc.freeze()
    else:
        gc.unfreeze()
