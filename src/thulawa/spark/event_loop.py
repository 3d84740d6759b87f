"""The event loop of a Python worker, which lives as long as the worker does."""

import asyncio
import gc
import threading
from collections.abc import Coroutine
from functools import cache
from typing import Any, TypeVar

from thulawa.engine.loops import new_event_loop

__all__ = ["event_loop", "run_async"]

_T = TypeVar("_T")


@cache
def event_loop() -> asyncio.AbstractEventLoop:
    """Give the event loop of this worker process; it runs on a thread of its own."""
    # calls in flight are what the collector looks for every 700 objects, and never finds dead:
    # at 10,000 in flight that is half of all time (benchmarks.engine, arm rare_gc)
    gc.set_threshold(50_000, 20, 20)
    loop = new_event_loop()
    threading.Thread(target=loop.run_forever, name="thulawa-loop", daemon=True).start()
    return loop


def run_async(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine to its end on the worker's loop."""
    return asyncio.run_coroutine_threadsafe(work, event_loop()).result()
