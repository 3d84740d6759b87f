"""Check the signatures of a node's functions when the node is added.

A function with the wrong arguments would fail at the first record. Checked here, the error names
the user's line and the expected arguments.
"""

import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from thulawa.core.callers import accepts, caller
from thulawa.errors import TopologyError
from thulawa.topology import nodes as kinds
from thulawa.topology.nodes import Node
from thulawa.topology.processor import AsyncProcessor

# description, function, expected arguments
_Use: TypeAlias = tuple[str, Any, tuple[str, ...]]

_ROW = ("key", "value")
_WITH_KEY = ("map_values", "flat_map_values")
_FOLD = ("key", "value", "aggregate")
_FIELDS: dict[type[Node], dict[str, tuple[str, ...]]] = {
    kinds.Source: {"timestamp_extractor": ("timestamp", "key", "value", "partition_time")},
    kinds.Sink: {"partitioner": ("key", "value", "partitions")},
    kinds.Aggregate: {
        "initializer": (),
        "aggregator": _FOLD,
        "merge": ("key", "one aggregate", "another"),
    },
    kinds.PartialAggregate: {"initializer": (), "aggregator": _FOLD},
    kinds.TableGrouping: {"selector": _ROW},
    kinds.TableAggregate: {"initializer": (), "adder": _FOLD, "subtractor": _FOLD},
    kinds.LookupJoin: {"key_selector": _ROW},
    kinds.TableJoin: {"joiner": ("value", "other value")},
    kinds.ForeignKeyStep: {"foreign_key": ("value",), "joiner": ("value", "other value")},
    kinds.Process: {"supplier": ()},
}


def check_function(
    function: object,
    what: str,
    arguments: tuple[str, ...],
    where: str | None = None,
    *,
    may_be_async: bool = False,
) -> None:
    """Raise `TopologyError` unless ``function`` accepts these arguments.

    >>> check_function(lambda key: key, "filter", ("key", "value"), "program.py:7")
    Traceback (most recent call last):
    ...
    thulawa.errors.TopologyError: filter needs a function of (key, value), not of (key) \
(at program.py:7)
    """
    wanted = f"{what} needs a function of ({', '.join(arguments)})"
    if what == "supplier":
        wanted = "a supplier is a processor or transformer class, or a function that creates one"
    if not callable(function):
        raise TopologyError(f"{wanted}, not {function!r}", where=where or caller())
    if not may_be_async and inspect.iscoroutinefunction(function):
        raise TopologyError(
            f"{what} does not accept async functions; use the operator that ends with _async",
            where=where or caller(),
        )
    if not accepts(function, len(arguments)):
        actual = str(inspect.signature(function))
        hint = "; with_key=True passes the key too" if what in _WITH_KEY else ""
        raise TopologyError(f"{wanted}, not of {actual}{hint}", where=where or caller())


def check_functions(node: Node) -> None:
    """Raise `TopologyError` if a function of a node has the wrong arguments."""
    may_be_async = isinstance(node, kinds.AsyncCall)
    for what, function, arguments in _uses(node):
        check_function(function, what, arguments, node.where or None, may_be_async=may_be_async)
    if isinstance(node, kinds.Process) and _is_async_processor(node.supplier):
        raise TopologyError(
            f"{node.supplier.__name__} is async: make it an AsyncProcessor, "
            "and use process_async or add_async_processor",
            where=node.where or None,
        )


def _uses(node: Node) -> Iterator[_Use]:
    for field, arguments in _FIELDS.get(type(node), {}).items():
        function = getattr(node, field)
        if function is not None:
            yield field.replace("_", " "), function, arguments
    match node:
        case kinds.Stateless(operation=operation) | kinds.Table(operation=operation):
            if isinstance(node, kinds.Table) and node.supplier is not None:
                yield "supplier", node.supplier, ()
            elif operation not in ("pass", "to_stream", "source"):
                by_value = operation in _WITH_KEY and not node.with_key
                yield operation, node.function, ("value",) if by_value else _ROW
        case kinds.Sink(topic=topic) if not isinstance(topic, str):
            yield "a topic by record", topic, topic_arguments(topic)
        case kinds.AsyncCall():
            yield f"{node.operation}_async", node.function, _async_arguments(node)
            if node.lane is not None:
                yield "lane", node.lane, _ROW


def topic_arguments(function: Callable[..., str]) -> tuple[str, ...]:
    """Return the arguments of a function that chooses the topic; ``metadata`` is optional."""
    with_metadata = not accepts(function, len(_ROW)) and accepts(function, len(_ROW) + 1)
    return (*_ROW, "metadata") if with_metadata else _ROW


def _async_arguments(node: kinds.AsyncCall) -> tuple[str, ...]:
    if node.operation == "process":
        return ()
    resource = () if node.resource is None else ("resource",)
    own = {"map_values": ("value",), "batch": ("records",)}.get(node.operation, _ROW)
    return (*own, *resource)


def _is_async_processor(supplier: object) -> bool:
    """Return whether a supplier is an async processor class, by its base or its method."""
    if not isinstance(supplier, type):
        return False
    method = getattr(supplier, "process", None)
    return issubclass(supplier, AsyncProcessor) or inspect.iscoroutinefunction(method)
