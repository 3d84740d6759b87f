"""The event loop of a Python worker: uvloop's where it is installed, else asyncio's."""

import asyncio
from importlib import import_module
from importlib.util import find_spec


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Create an event loop of uvloop if it is installed, else of asyncio.

    uvloop is looked up, not imported: the engine depends on the standard library alone.
    """
    if find_spec("uvloop") is not None:
        loop: asyncio.AbstractEventLoop = import_module("uvloop").new_event_loop()
        return loop
    return asyncio.new_event_loop()
