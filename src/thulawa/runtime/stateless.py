"""Stateless nodes as functions.

Each operation is a closure of its own, without a decision per record: this is the hot path.
``try`` costs nothing unless something is raised.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from thulawa.core.records import Headers
from thulawa.runtime.blocks import IMMUTABLE_TYPES, Block, ForwardBlock
from thulawa.runtime.context import Failed, Forward, TaskContext, Wiring
from thulawa.topology.nodes import Branch, Stateless

_Function: TypeAlias = Callable[..., Any]


def stateless(node: Stateless, wiring: Wiring) -> Forward:
    """Return the function of a stateless node."""
    return _stateless(node, wiring.forward, wiring.failed)


def _stateless(node: Stateless, forward: Forward, failed: Failed) -> Forward:
    if node.operation == "pass":
        return forward
    if node.operation == "to_stream":
        return lambda key, value, timestamp, headers: forward(key, value[0], timestamp, headers)
    assert node.function is not None
    if node.operation in ("map_values", "flat_map_values") and node.with_key:
        return _BUILDERS[f"{node.operation}_with_key"](node.function, forward, failed)
    return _BUILDERS[node.operation](node.function, forward, failed)


def stateless_blocks(
    nodes: Sequence[tuple[Stateless, Failed]], context: TaskContext, forward: ForwardBlock
) -> ForwardBlock:
    """Return the function for blocks of a chain of stateless nodes."""
    nodes = [(node, failed) for node, failed in nodes if node.operation != "pass"]
    if not nodes:
        return forward
    if [node.operation for node, _ in nodes] == ["to_stream"]:
        return lambda block: forward(block._replace(values=[change[0] for change in block.values]))
    take, send = _gathering(context, forward)
    call = take
    for node, failed in reversed(nodes):
        call = _stateless(node, call, failed)

    def process(block: Block) -> None:
        for context.offset, timestamp, key, value, headers in block.records():
            call(key, value, timestamp, headers)
        send()

    return process


def _gathering(context: TaskContext, forward: ForwardBlock) -> tuple[Forward, Callable[[], None]]:
    """Return a function that collects records, and one that forwards them as a block."""
    columns: tuple[list[Any], ...] = ([], [], [], [], [])
    offsets, timestamps, keys, values, every_headers = columns

    def send() -> None:
        if offsets:
            block = Block(*(column.copy() for column in columns))
            for column in columns:
                column.clear()
            forward(block)

    def take(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        offsets.append(context.offset)
        timestamps.append(timestamp)
        keys.append(key)
        values.append(value)
        every_headers.append(headers)
        if type(value) not in IMMUTABLE_TYPES:
            send()

    return take, send


def _filter(function: _Function, forward: Forward, failed: Failed) -> Forward:
    def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        try:
            holds = function(key, value)
        except Exception as error:  # noqa: BLE001 the handler decides about any error
            return failed(error, key, value, timestamp, headers)
        if holds:
            forward(key, value, timestamp, headers)
        return None

    return process


def _map(function: _Function, forward: Forward, failed: Failed) -> Forward:
    def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        try:
            new_key, new_value = function(key, value)
        except Exception as error:  # noqa: BLE001 the handler decides about any error
            return failed(error, key, value, timestamp, headers)
        return forward(new_key, new_value, timestamp, headers)

    return process


def _map_values(function: _Function, forward: Forward, failed: Failed) -> Forward:
    def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        try:
            result = function(value)
        except Exception as error:  # noqa: BLE001 the handler decides about any error
            return failed(error, key, value, timestamp, headers)
        return forward(key, result, timestamp, headers)

    return process


def _map_values_with_key(function: _Function, forward: Forward, failed: Failed) -> Forward:
    def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        try:
            result = function(key, value)
        except Exception as error:  # noqa: BLE001 the handler decides about any error
            return failed(error, key, value, timestamp, headers)
        return forward(key, result, timestamp, headers)

    return process


def _flat_map(function: _Function, forward: Forward, failed: Failed) -> Forward:
    def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        try:
            results = list(function(key, value))
        except Exception as error:  # noqa: BLE001 the handler decides about any error
            return failed(error, key, value, timestamp, headers)
        for new_key, new_value in results:
            forward(new_key, new_value, timestamp, headers)
        return None

    return process


def _flat_map_values_with_key(function: _Function, forward: Forward, failed: Failed) -> Forward:
    def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        try:
            results = list(function(key, value))
        except Exception as error:  # noqa: BLE001 the handler decides about any error
            return failed(error, key, value, timestamp, headers)
        for result in results:
            forward(key, result, timestamp, headers)
        return None

    return process


def _peek(function: _Function, forward: Forward, failed: Failed) -> Forward:
    def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        try:
            function(key, value)
        except Exception as error:  # noqa: BLE001 the handler decides about any error
            return failed(error, key, value, timestamp, headers)
        return forward(key, value, timestamp, headers)

    return process


_BUILDERS: dict[str, Callable[[_Function, Forward, Failed], Forward]] = {
    "filter": _filter,
    "filter_not": lambda f, *out: _filter(lambda key, value: not f(key, value), *out),
    "map": _map,
    "map_values": _map_values,
    "map_values_with_key": _map_values_with_key,
    "flat_map": _flat_map,
    "flat_map_values": lambda f, *out: _flat_map_values_with_key(lambda _, value: f(value), *out),
    "flat_map_values_with_key": _flat_map_values_with_key,
    "select_key": lambda f, *out: _map(lambda key, value: (f(key, value), value), *out),
    "peek": _peek,
    "foreach": _peek,
}


def branch(node: Branch, wiring: Wiring) -> Forward:
    """Return the function of a branch: the child of the first true predicate, else the default."""
    children, failed = wiring.children, wiring.failed
    routes = [
        (predicate, children[child])
        for predicate, child in zip(node.predicates, node.children, strict=True)
    ]
    otherwise = None if node.default is None else children[node.default]

    def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        try:
            route = next((child for holds, child in routes if holds(key, value)), otherwise)
        except Exception as error:  # noqa: BLE001 the handler decides about any error
            return failed(error, key, value, timestamp, headers)
        if route is not None:
            route(key, value, timestamp, headers)
        return None

    return process
