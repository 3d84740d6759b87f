"""What can be said about a `map_by_key`, beside its function, key and columns."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypedDict

from thulawa.engine import Adaptive, Batch, Bounds, Lanes, Quarantine, Rate, Retry
from thulawa.engine.options import EmitOrder, OnError, Order, Unkeyed
from thulawa.runtime.caches import Cache
from thulawa.spark.map_by_key.lane_report import LaneReport

__all__ = ["Choices"]


class Choices(TypedDict, total=False):
    """Options of one operator; all have defaults.

    The first group is the engine's (see `thulawa.engine.Options`). ``resource`` opens
    something once per worker, handed to the function as its second argument, and closes it when
    it is not used any more; ``cache`` lets
    equal questions share an answer; ``timestamp`` names the column that decides which key goes
    first. ``lane`` names a column, or is a function of the row, that gives the row's lane: its
    name in ``lanes`` or its place there. ``repartition`` brings all rows of a key into one
    partition first, in the order of the columns in ``order_by``. ``dead_letters`` names the
    topic for ``on_error="dead_letter"``: ``"file:./topics#visits-dead"``. ``report`` collects
    what the lanes come to.
    """

    order: Order
    emit: EmitOrder
    unkeyed: Unkeyed
    in_flight: int
    adaptive: Adaptive
    bounds: Bounds
    lanes: Lanes
    retry: Retry
    timeout: float
    deadline: float
    on_error: OnError
    quarantine: Quarantine
    batch: Batch
    rate: Rate
    resource_timeout: float

    name: str
    resource: Callable[[], AbstractAsyncContextManager[Any]]
    cache: Cache
    timestamp: str
    lane: str | Callable[[Any], str | int]
    repartition: bool
    order_by: str | list[str]
    dead_letters: str
    report: LaneReport
