"""Keep the cyclic garbage collector from scanning objects that are not garbage."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

_UNFREEZE_EVERY = 100
_calls = count(1)


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Disable the garbage collector while a batch is created.

    A batch has hundreds of thousands of objects without cycles; scanning them again and again took
    a third of its time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def freeze_gc() -> None:
    """Freeze live objects, before a task, so that the `gc.collect()` after it skips them.

    Spark's Python workers collect all garbage after each task, while the next one waits: 40 ms and
    more for a worker's modules, and as much again for a large store. Objects that are live before a
    task have survived that. They may become garbage later, so every hundredth call unfreezes all.
    """
    if next(_calls) % _UNFREEZE_EVERY:
        gc.freeze()
    else:
        gc.unfreeze()
