"""Build the graph of a topology: generated names, nodes, stores and repartitions.

Generated names are Kafka's: a prefix and a number that every operator increments, in Kafka's order,
so that a program has the same names in both. They change when operators are added before them, and
state is found by name: ``explicit_names`` makes a generated name of a store or repartition a
warning or an error.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Literal, TypeAlias

from thulawa.core.callers import caller
from thulawa.core.durations import milliseconds
from thulawa.core.serdes import Serde
from thulawa.errors import TopologyError
from thulawa.state.specs import StoreKind, StoreSpec
from thulawa.streams.operator_options import Materialized, Named, or_default
from thulawa.topology.nodes import (
    Aggregate,
    Node,
    Sink,
    Source,
    Stateless,
    Suppress,
    Table,
    TableAggregate,
    TableJoin,
)
from thulawa.topology.topology import Topology

ExplicitNames: TypeAlias = Literal["off", "warn", "error"]
NameLike: TypeAlias = str | Named | None


@dataclass(frozen=True, slots=True)
class StoreName:
    """The name of a store, and whether the user chose it."""

    name: str
    chosen: bool


class GraphBuilder:
    """Build the topology that all streams and tables of a `StreamsBuilder` share."""

    def __init__(self, explicit_names: ExplicitNames) -> None:
        self.topology = Topology()
        self._numbers = count()
        self._explicit_names = explicit_names
        self._unmaterialized: dict[str, tuple[StoreName, StoreSpec]] = {}

    # --- names

    def generated(self, prefix: str) -> str:
        """Return the next generated name."""
        return f"{prefix}{next(self._numbers):010d}"

    def named(self, name: NameLike, prefix: str, suffix: str = "") -> str:
        """Return the user's name or a generated one; as in Kafka both increment the number."""
        generated = self.generated(prefix)
        own = _own(name)
        return generated if own is None else own + suffix

    def name_or_generated(self, name: NameLike, prefix: str) -> str:
        """Return the user's name or a generated one; only the latter increments the number."""
        own = _own(name)
        return self.generated(prefix) if own is None else own

    def store_name(self, materialized: Materialized[Any, Any] | None, prefix: str) -> StoreName:
        """Return the user's name of a store, or a generated one."""
        options = or_default(materialized, Materialized)
        if options.name is not None:
            return StoreName(options.name, chosen=True)
        return StoreName(self.generated(f"{prefix}STATE-STORE-"), chosen=False)

    def guard(self, what: str, generated: str) -> None:
        """Warn about a generated name of a store or repartition, or reject it."""
        if self._explicit_names == "off":
            return
        message = (
            f"the {what} {generated!r} has a generated name, which changes with the program; "
            "name it"
        )
        if self._explicit_names == "error":
            raise TopologyError(message, where=caller())
        warnings.warn(f"{message} (at {caller()})", stacklevel=2)

    # --- nodes

    def add(self, node: Node) -> None:
        """Add a node, with the user's line."""
        self.topology.add(replace(node, where=caller()))

    def add_source(self, source: Source) -> str:
        """Add a source; return its name, or that of an equal source of the same topics."""
        for node in self.topology.nodes.values():
            if isinstance(node, Source) and set(node.topics) & set(source.topics):
                if replace(node, name=source.name, where="") == replace(source, where=""):
                    return node.name
                raise TopologyError(
                    f"{sorted(set(node.topics) & set(source.topics))} is already read, "
                    f"with other options, at {node.where}; read it once, and branch",
                    where=caller(),
                )
        self.add(source)
        return source.name

    def add_store(
        self,
        name: StoreName,
        kind: StoreKind = "key-value",
        materialized: Materialized[Any, Any] | None = None,
        *,
        size: int = 0,
        retention: int = 0,
    ) -> None:
        """Add a store for a node."""
        spec = self.spec(name, kind, materialized, size=size, retention=retention)
        if not name.chosen:
            self.guard("store", name.name)
        self.topology.add_store(spec)

    def spec(
        self,
        name: StoreName,
        kind: StoreKind,
        materialized: Materialized[Any, Any] | None,
        *,
        size: int = 0,
        retention: int = 0,
    ) -> StoreSpec:
        """Return the specification of a store."""
        options = or_default(materialized, Materialized)
        if options.history is not None and kind == "key-value":
            kind, retention = "versioned", milliseconds(options.history, name="history")
        if options.retention is not None:
            asked = milliseconds(options.retention, name="retention")
            if asked < retention:
                raise TopologyError(
                    f"the store {name.name!r} needs a retention of at least {retention} ms "
                    f"(size and grace), not {asked} ms",
                    where=caller(),
                )
            retention = asked
        return StoreSpec(
            name=name.name,
            kind=kind,
            size=size,
            retention=retention,
            key_serde=options.key_serde,
            value_serde=options.value_serde,
            changelog=options.changelog,
        )

    def check_stores(self, stores: tuple[str, ...]) -> None:
        """Raise `TopologyError` if a store does not exist."""
        for store in stores:
            if store not in self.topology.stores:
                raise TopologyError(
                    f"there is no store {store!r}; add it with builder.add_state_store",
                    where=caller(),
                )

    def source_table(
        self, node: Table, name: StoreName, materialized: Materialized[Any, Any] | None
    ) -> None:
        """Add a table of updates; it is materialized if its store is named, or when needed."""
        spec = self.spec(name, "key-value", materialized)
        node = replace(node, versioned=spec.kind == "versioned", where=caller())
        self.topology.add(node)
        self._unmaterialized[node.name] = name, spec
        if name.chosen or spec.kind == "versioned":
            self._materialize(node)

    def stores_of(self, table: str) -> tuple[str, ...]:
        """Return the stores that a table's rows are read from; materialize it if it has none."""
        node = self.topology.node(table)
        match node:
            case Table(store=str(store)):
                return (store,)
            case Table(operation="source"):
                return self._materialize(node)
            case Aggregate() | TableAggregate():
                return (node.store,)
            case Suppress():
                return (node.store, *self.stores_of(node.table))
            case TableJoin():
                return (*self.stores_of(node.table), *self.stores_of(node.other))
            case _:
                return tuple(dict.fromkeys(self.stores_of(node.parents[0])))

    def send_old_values(self, table: str, *, force: bool) -> bool:
        """Request old values of a table, by Kafka's rules; return whether its updates have them.

        A table read from a topic is materialized for this only with ``force``.
        """
        node = self.topology.node(table)
        if isinstance(node, Suppress):
            return self.send_old_values(node.table, force=force)
        if not isinstance(node, Table):
            return True
        match node.operation:
            case "source":
                if node.store is None and force:
                    self._materialize(node)
                return force or node.store is not None
            case "pass":
                for parent in map(self.topology.node, node.parents):
                    if isinstance(parent, TableJoin):
                        self.send_old_values(parent.parents[0], force=True)
                return True
        sent = node.store is not None or self.send_old_values(node.parents[0], force=force)
        if sent:
            self.topology.put(replace(node, sends_old_values=True))
        return sent

    def _materialize(self, node: Table) -> tuple[str, ...]:
        name, spec = self._unmaterialized.pop(node.name)
        if not name.chosen:
            self.guard("store", spec.name)
        self.topology.add_store(spec)
        stores = tuple(dict.fromkeys((*node.stores, spec.name)))
        self.topology.put(replace(node, store=spec.name, stores=stores))
        return (spec.name,)

    def repartition(
        self,
        parent: str,
        prefix: str,
        *,
        chosen: bool,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        partitioner: Callable[..., int] | None = None,
        partitions: int | None = None,
        keep_null_keys: bool = False,
    ) -> str:
        """Add a repartition by key; return the name of the source that reads it."""
        topic = prefix if prefix.endswith("-repartition") else f"{prefix}-repartition"
        names = [self.generated(f"KSTREAM-{kind}-") for kind in ("SINK", "FILTER", "SOURCE")]
        if not chosen:
            self.guard("repartition", topic)
        if not _is_generated(prefix):
            names = [f"{topic}-{kind}" for kind in ("sink", "filter", "source")]
        sink, null_filter, source = names
        function = _any if keep_null_keys else _has_key
        self.add(
            Stateless(name=null_filter, parents=(parent,), operation="filter", function=function)
        )
        self.add(
            Sink(
                name=sink,
                parents=(null_filter,),
                topic=topic,
                key_serde=key_serde,
                value_serde=value_serde,
                partitioner=partitioner,
                partitions=partitions,
                internal=True,
            )
        )
        self.add(
            Source(
                name=source,
                topics=(topic,),
                key_serde=key_serde,
                value_serde=value_serde,
                internal=True,
            )
        )
        return source


def _own(name: NameLike) -> str | None:
    """Return the user's name, if any."""
    own = name.name if isinstance(name, Named) else name
    if own is not None and not isinstance(own, str):
        raise TopologyError(f"a name is a str or a Named, not {own!r}", where=caller())
    return own


def _is_generated(name: str) -> bool:
    digits = name[-10:]
    return name.startswith("KSTREAM") and name[-11:-10] == "-" and digits.isdigit()


def _has_key(key: Any, value: Any) -> bool:  # noqa: ARG001 a predicate takes both
    return key is not None


def _any(key: Any, value: Any) -> bool:  # noqa: ARG001 a predicate takes both
    return True
