"""Add random delays to the async functions of a topology, so that they finish out of order."""

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from random import Random
from typing import Any

from thulawa.topology.nodes import AsyncCall, Node
from thulawa.topology.topology import Topology

__all__ = ["with_random_latencies"]

_LONGEST = 0.001  # seconds, of virtual time: below any sensible timeout


def with_random_latencies(topology: Topology, random: Random) -> Topology:
    """Return the topology with a random delay before each call of an async function.

    Plain functions and the resources of async nodes stay as they are.
    """
    changed = Topology()
    for store in topology.stores.values():
        changed.add_store(store)
    for node in topology.nodes.values():
        changed.add(_delayed(node, random))
    return changed


def _delayed(node: Node, random: Random) -> Node:
    if not isinstance(node, AsyncCall):
        return node
    if node.operation == "process":
        return replace(node, function=_delayed_processor(node.function, random))
    if not inspect.iscoroutinefunction(node.function):
        return node
    return replace(node, function=_delayed_call(node.function, random))


def _delayed_call(function: Callable[..., Any], random: Random) -> Callable[..., Any]:
    @wraps(function)
    async def call(*arguments: Any) -> Any:
        await asyncio.sleep(random.uniform(0, _LONGEST))
        return await function(*arguments)

    return call


def _delayed_processor(supplier: Callable[[], Any], random: Random) -> Callable[[], Any]:
    @wraps(supplier, updated=())
    def make() -> Any:
        processor = supplier()
        processor.process = _delayed_call(processor.process, random)
        return processor

    return make
