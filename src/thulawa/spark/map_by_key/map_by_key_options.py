"""The options of `map_by_key` besides its function, key and columns."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, TypedDict

from thulawa.engine import (
    Adaptive,
    Batch,
    Bounds,
    Lanes,
    Options,
    Quarantine,
    Rate,
    Retry,
    SingleFlight,
)
from thulawa.engine.options import EmitOrder, OnError, Order, Unkeyed
from thulawa.errors import ConfigurationError
from thulawa.runtime.caches import Cache
from thulawa.spark.map_by_key.lane_report import LaneReport

__all__ = ["MapByKeyOptions", "check_names", "engine_options"]


class MapByKeyOptions(TypedDict, total=False):
    """Options of one operator, as keyword arguments of `map_by_key`; all have defaults."""

    # of the engine (see `thulawa.engine.Options`)
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

    # the name of the operator in errors and metrics; by default that of the function
    name: str
    # opened once per worker, passed to the function as its second argument, closed when idle
    resource: Callable[[], AbstractAsyncContextManager[Any]]
    # calls with equal cache keys share a result
    cache: Cache
    # the column whose value decides which key is processed first
    timestamp: str
    # a column, or a function of the row, that gives the name or the position of the row's lane
    lane: str | Callable[[Any], str | int]
    # shuffles all rows of a key into one partition, in the order of ``order_by``
    repartition: bool
    order_by: str | list[str]
    # the topic for ``on_error="dead_letter"``, such as ``file:./topics#visits-dead``
    dead_letters: str
    # collects lane statistics
    report: LaneReport


def check_names(operator: str, options: MapByKeyOptions) -> None:
    """Raise `ConfigurationError` for an option that does not exist, with the closest name."""
    known = [*MapByKeyOptions.__annotations__, "key", "returns", "keep"]
    for unknown in set(options) - set(known):
        close = get_close_matches(unknown, known, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {sorted(known)}"
        raise ConfigurationError(f"{operator}: there is no option {unknown!r}; {hint}")


def engine_options(operator: str, options: MapByKeyOptions) -> Options:
    """Return the options of the engine: those that `thulawa.engine.Options` has."""
    names = {one.name for one in fields(Options)} - {"name"}
    chosen: dict[str, Any] = {name: value for name, value in options.items() if name in names}
    if (cache := options.get("cache")) is not None:
        chosen["single_flight"] = SingleFlight(by=cache.cache_key)
    return Options(name=operator, **chosen)
