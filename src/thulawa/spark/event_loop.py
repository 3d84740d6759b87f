"""The event loop of a Python worker process; it lives as long as the process."""

import asyncio
import gc
import threading
from collections.abc import Coroutine
from functools import cache
from typing import Any, TypeVar

from thulawa.engine import new_event_loop

_T = TypeVar("_T")


@cache
def event_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of this process, which runs on its own thread."""
    # By default the garbage collector runs every 700 allocations and scans all calls in flight,
    # none of which is garbage: half of all time at 10,000 in flight (benchmarks.engine, rare_gc).
    gc.set_threshold(50_000, 20, 20)
    loop = new_event_loop()
    threading.Thread(target=loop.run_forever, name="thulawa-loop", daemon=True).start()
    return loop


def run_async(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine on the worker's event loop and return its result."""
    return asyncio.run_coroutine_threadsafe(work, event_loop()).result()
