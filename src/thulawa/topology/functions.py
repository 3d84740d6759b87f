"""The functions of a node: what each is called with, checked when the node is added.

A function that takes other arguments would fail at the first record; found here, the error names
the user's line, and what the function is going to be given.
"""

import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from thulawa.core.callers import caller
from thulawa.core.errors import TopologyError
from thulawa.core.signatures import accepts
from thulawa.topology.nodes import (
    Aggregate,
    AsyncCall,
    ForeignKeyStep,
    LookupJoin,
    Node,
    PartialAggregate,
    Process,
    Sink,
    Source,
    Stateless,
    Table,
    TableAggregate,
    TableGrouping,
    TableJoin,
)
from thulawa.topology.processor import AsyncProcessor

__all__ = ["check_function", "check_functions", "topic_arguments"]

# what it is, the function, the arguments it gets
_Use: TypeAlias = tuple[str, Any, tuple[str, ...]]

_ROW = ("key", "value")
_WITH_KEY = ("map_values", "flat_map_values")
_FOLD = ("key", "value", "aggregate")
_FIELDS: dict[type[Node], dict[str, tuple[str, ...]]] = {
    Source: {"timestamp_extractor": ("timestamp", "key", "value", "partition_time")},
    Sink: {"partitioner": ("key", "value", "partitions")},
    Aggregate: {
        "initializer": (),
        "aggregator": _FOLD,
        "merge": ("key", "one aggregate", "another"),
    },
    PartialAggregate: {"initializer": (), "aggregator": _FOLD},
    TableGrouping: {"selector": _ROW},
    TableAggregate: {"initializer": (), "adder": _FOLD, "subtractor": _FOLD},
    LookupJoin: {"key_selector": _ROW},
    TableJoin: {"joiner": ("value", "other value")},
    ForeignKeyStep: {"foreign_key": ("value",), "joiner": ("value", "other value")},
    Process: {"supplier": ()},
}


def check_function(
    function: object,
    what: str,
    arguments: tuple[str, ...],
    where: str | None = None,
    *,
    may_wait: bool = False,
) -> None:
    """Reject what is no function of these arguments.

    >>> check_function(lambda key: key, "filter", ("key", "value"), "program.py:7")
    Traceback (most recent call last):
    ...
    thulawa.core.errors.TopologyError: filter needs a function of (key, value), and this one \
takes (key) (at program.py:7)
    """
    wanted = f"{what} needs a function of ({', '.join(arguments)})"
    if what == "supplier":
        wanted = "a processor or transformer is given by its class, or by a function that makes one"
    if not callable(function):
        raise TopologyError(f"{wanted}, not {function!r}", where=where or caller())
    if not may_wait and inspect.iscoroutinefunction(function):
        raise TopologyError(
            f"{what} does not wait for async functions; the operators in _async do",
            where=where or caller(),
        )
    if not accepts(function, len(arguments)):
        taken = str(inspect.signature(function))
        hint = "; with_key=True gives it the key too" if what in _WITH_KEY else ""
        raise TopologyError(f"{wanted}, and this one takes {taken}{hint}", where=where or caller())


def check_functions(node: Node) -> None:
    """Reject a node one of whose functions cannot be called as it is going to be."""
    may_wait = isinstance(node, AsyncCall)
    for what, function, arguments in _uses(node):
        check_function(function, what, arguments, node.where or None, may_wait=may_wait)
    if isinstance(node, Process) and _waits(node.supplier):
        raise TopologyError(
            f"{node.supplier.__name__} waits: make it an AsyncProcessor, "
            "and give it to process_async, or to add_async_processor",
            where=node.where or None,
        )


def _uses(node: Node) -> Iterator[_Use]:
    for field, arguments in _FIELDS.get(type(node), {}).items():
        function = getattr(node, field)
        if function is not None:
            yield field.replace("_", " "), function, arguments
    match node:
        case Stateless(operation=operation) | Table(operation=operation):
            if isinstance(node, Table) and node.supplier is not None:
                yield "supplier", node.supplier, ()
            elif operation not in ("pass", "to_stream", "source"):
                by_value = operation in _WITH_KEY and not node.with_key
                yield operation, node.function, ("value",) if by_value else _ROW
        case Sink(topic=topic) if not isinstance(topic, str):
            yield "a topic by record", topic, topic_arguments(topic)
        case AsyncCall():
            yield f"{node.operation}_async", node.function, _async_arguments(node)
            if node.lane is not None:
                yield "lane", node.lane, _ROW


def topic_arguments(function: Callable[..., str]) -> tuple[str, ...]:
    """Name what a function that chooses the topic is given: where the record is from, if asked."""
    asks = not accepts(function, len(_ROW)) and accepts(function, len(_ROW) + 1)
    return (*_ROW, "metadata") if asks else _ROW


def _async_arguments(node: AsyncCall) -> tuple[str, ...]:
    if node.operation == "process":
        return ()
    resource = () if node.resource is None else ("resource",)
    own = {"map_values": ("value",), "batch": ("records",)}.get(node.operation, _ROW)
    return (*own, *resource)


def _waits(supplier: object) -> bool:
    """Return whether it is a class of async processors, by its base or by its method."""
    if not isinstance(supplier, type):
        return False
    method = getattr(supplier, "process", None)
    return issubclass(supplier, AsyncProcessor) or inspect.iscoroutinefunction(method)
