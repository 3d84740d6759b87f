"""The key-parallel engine: many keys of a partition at once, each key in order.

Use `Engine` with `Options`. It drives `Scheduler`, a state machine without I/O, which can also be
driven by a host with its own loop, or by a test without any.
"""

from thulawa.engine.driver import OutcomeSink, WorkSource
from thulawa.engine.engine import Engine
from thulawa.engine.limits import LimitReport
from thulawa.engine.options import (
    Adaptive,
    Batch,
    Bounds,
    Lane,
    Lanes,
    Options,
    Quarantine,
    Rate,
    Retry,
    SingleFlight,
)
from thulawa.engine.scheduler import Scheduler
from thulawa.engine.statistics import Percentiles, Statistics
from thulawa.engine.work_items import Outcome, WorkItem
from thulawa.engine.workers import new_event_loop

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
    "OutcomeSink",
    "Percentiles",
    "Quarantine",
    "Rate",
    "Retry",
    "Scheduler",
    "SingleFlight",
    "Statistics",
    "WorkItem",
    "WorkSource",
    "new_event_loop",
]
