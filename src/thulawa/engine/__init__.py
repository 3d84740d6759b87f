"""The key-parallel engine: many keys of a partition at once, each key in order.

Everyday use is `Engine` with `Options`. Underneath is `Scheduler`, a state machine without
I/O, which any driver can use: a host that has its own loop, or a test without any.
"""

from thulawa.engine.driver import Sink, Source
from thulawa.engine.engine import Engine
from thulawa.engine.limits import Adaptive, LimitReport
from thulawa.engine.loops import new_event_loop
from thulawa.engine.model import Outcome, Record
from thulawa.engine.options import (
    Batch,
    Bounds,
    Lane,
    Lanes,
    Options,
    Quarantine,
    Rate,
    Retry,
    Sharing,
)
from thulawa.engine.scheduler import Scheduler
from thulawa.engine.statistics import Percentiles, Statistics

__all__ = [
    "Adaptive",
    "Batch",
    "Bounds",
    "Engine",
    "Lane",
    "Lanes",
    "LimitReport",
    "Options",
    "Outcome",
    "Percentiles",
    "Quarantine",
    "Rate",
    "Record",
    "Retry",
    "Scheduler",
    "Sharing",
    "Sink",
    "Source",
    "Statistics",
    "new_event_loop",
]
