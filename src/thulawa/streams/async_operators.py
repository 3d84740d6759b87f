"""Async operators: coroutine functions, for many records concurrently, each key in order."""

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, TypedDict, Unpack

from thulawa import engine
from thulawa.core.records import Record
from thulawa.engine.resources import check_resource
from thulawa.errors import ConfigurationError
from thulawa.streams import kstream
from thulawa.streams.graph_builder import NameLike, StreamOrTable
from thulawa.streams.type_variables import K1, V1, K, V
from thulawa.topology.nodes import AsyncCall
from thulawa.topology.processor import AsyncProcessor

_Operation = Literal["map", "map_values", "flat_map", "process", "batch"]


class AsyncOptions(TypedDict, total=False):
    """The engine's options; errors that remain after retries go to the processing handler.

    ``resource`` creates an async context manager, which is opened once per task and passed to the
    function as its last argument; ``resource_timeout`` limits its opening and its closing.
    ``lane``, required with ``lanes``, is a function of key and value that returns the name or the
    index of a record's lane. ``deterministic`` declares that the function always returns the same
    for a record; with it and ``emit="partition"`` a repartition behind it needs no topic.
    """

    order: Literal["key", "partition", "none", "emit"]
    emit: Literal["finished", "partition"]
    unkeyed: Literal["ordered", "parallel"]
    in_flight: int
    adaptive: engine.Adaptive | None
    bounds: engine.Bounds
    lanes: engine.Lanes
    retry: engine.Retry
    timeout: float | None
    deadline: float | None
    quarantine: engine.Quarantine | None
    batch: engine.Batch | None
    rate: engine.Rate | None
    single_flight: engine.SingleFlight | None
    resource_timeout: float
    lane: Callable[[Any, Any], str | int]
    resource: Callable[[], AbstractAsyncContextManager[Any]] | None
    deterministic: bool


class AsyncOperators(StreamOrTable[K, V]):
    """The async operators of a stream."""

    def map_async(
        self,
        mapper: Callable[[K, V], Awaitable[tuple[K1, V1]]]
        | Callable[[K, V, Any], Awaitable[tuple[K1, V1]]],
        *,
        named: NameLike = None,
        **options: Unpack[AsyncOptions],
    ) -> "kstream.KStream[K1, V1]":
        """Map each record to another, by an async function of key and value.

        >>> async def swap(key, value):
        ...     return value, key
        >>> preview(lambda s: s.map_async(swap), ("a", 1))
        [(1, 'a')]
        """
        return self._rekeyed(self._add_async("map", mapper, named, options))

    def map_values_async(
        self,
        mapper: Callable[[V], Awaitable[V1]] | Callable[[V, Any], Awaitable[V1]],
        *,
        named: NameLike = None,
        **options: Unpack[AsyncOptions],
    ) -> "kstream.KStream[K, V1]":
        """Map each value to another, by an async function of the value.

        >>> import asyncio
        >>> async def look_up(ip):
        ...     await asyncio.sleep(0.25)
        ...     return {"1.1.1.1": "AU"}.get(ip)
        >>> preview(lambda s: s.map_values_async(look_up, in_flight=1000), ("ann", "1.1.1.1"))
        [('ann', 'AU')]
        """
        return self._revalued(self._add_async("map_values", mapper, named, options))

    def flat_map_async(
        self,
        mapper: Callable[[K, V], Awaitable[Iterable[tuple[K1, V1]]]]
        | Callable[[K, V, Any], Awaitable[Iterable[tuple[K1, V1]]]],
        *,
        named: NameLike = None,
        **options: Unpack[AsyncOptions],
    ) -> "kstream.KStream[K1, V1]":
        """Map each record to any number of records, by an async function of key and value.

        >>> async def friends_of(key, value):
        ...     return [(friend, key) for friend in value]
        >>> preview(lambda s: s.flat_map_async(friends_of), ("ann", ["bob", "cem"]))
        [('bob', 'ann'), ('cem', 'ann')]
        """
        return self._rekeyed(self._add_async("flat_map", mapper, named, options))

    def batch_async(
        self,
        function: Callable[[list[Record[K, V]]], Awaitable[list[V1]]]
        | Callable[[list[Record[K, V]], Any], Awaitable[list[V1]]],
        *,
        named: NameLike = None,
        **options: Unpack[AsyncOptions],
    ) -> "kstream.KStream[K, V1]":
        """Map values in batches, by an async function of a list of records.

        It returns a list with the new value of each record, or an exception.

        >>> async def double(records):
        ...     return [record.value * 2 for record in records]
        >>> preview(lambda s: s.batch_async(double), ("a", 1))
        [('a', 2)]
        """
        return self._revalued(self._add_async("batch", function, named, options))

    def process_async(
        self,
        supplier: Callable[[], AsyncProcessor[K, V, K1, V1]],
        *stores: str,
        named: NameLike = None,
        **options: Unpack[AsyncOptions],
    ) -> "kstream.KStream[K1, V1]":
        """Process each record by an async processor, one call per key at a time.

        >>> class Echo(AsyncProcessor):
        ...     async def process(self, record):
        ...         self.context.forward(record)
        >>> preview(lambda s: s.process_async(Echo), ("a", 1))
        [('a', 1)]
        """
        self.graph.check_stores(stores)
        return self._rekeyed(self._add_async("process", supplier, named, options, stores))

    def _add_async(
        self,
        operation: _Operation,
        function: Callable[..., Any],
        named: NameLike,
        options: AsyncOptions,
        stores: tuple[str, ...] = (),
    ) -> str:
        """Add the node; reject invalid options here, at the user's line."""
        engine_options: dict[str, Any] = dict(options)
        resource, lane = engine_options.pop("resource", None), engine_options.pop("lane", None)
        declared = engine_options.pop("deterministic", False)
        if (lane is None) != ("lanes" not in engine_options):
            raise ConfigurationError("lanes= and lane= must be used together")
        if operation == "batch":
            engine_options.setdefault("batch", engine.Batch())
        elif engine_options.get("batch") is not None:
            raise ConfigurationError(
                "batch= is an option of batch_async, whose function gets a list"
            )
        prefix = f"KSTREAM-{operation.upper().replace('_', '')}-ASYNC-"
        name = self.graph.named(named, prefix)
        if resource is not None:
            check_resource(resource, name)
        return self.graph.add(
            AsyncCall(
                name=name,
                parents=(self.name,),
                stores=stores,
                operation=operation,
                function=function,
                options=engine.Options(name=name, on_error="column", **engine_options),
                resource=resource,
                lane=lane,
                deterministic=declared,
            )
        )

    def _revalued(self, name: str) -> "kstream.KStream[K, Any]":
        """Return the stream behind a node that changes values."""
        return kstream.KStream(self.graph, name, self.key_serde, rekeyed=self.rekeyed)

    def _rekeyed(self, name: str) -> "kstream.KStream[Any, Any]":
        """Return the stream behind a node that may change keys."""
        return kstream.KStream(self.graph, name, rekeyed=True)
