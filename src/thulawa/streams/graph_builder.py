"""Build the graph of a topology: generated names, nodes, stores and repartitions.

Generated names are Kafka's: a prefix and a number that every operator increments, in Kafka's order,
so that a program has the same names in both. They change when operators are added before them, and
state is found by name: ``explicit_names`` makes a generated name of a store or repartition a
warning or an error.
"""

import warnings
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Generic, Literal, TypeAlias

from thulawa.core.callers import caller, topology_error
from thulawa.core.durations import milliseconds
from thulawa.state.specs import StoreKind, StoreSpec
from thulawa.streams.operator_options import AnySerde, Materialized, Named, Repartitioned
from thulawa.streams.type_variables import K, V
from thulawa.topology import nodes as kinds
from thulawa.topology.topology import Topology

ExplicitNames: TypeAlias = Literal["off", "warn", "error"]
NameLike: TypeAlias = str | Named | None
StoreOptions: TypeAlias = Materialized[Any, Any]


@dataclass(frozen=True, slots=True)
class InternalName:
    """The name of a store or repartition, and whether the user chose it."""

    name: str
    chosen: bool

    def or_own(self, name: str | None) -> "InternalName":
        """Return another name of the user's, if there is one."""
        return self if name is None else InternalName(name or self.name, chosen=True)


class GraphBuilder:
    """Build the topology that all streams and tables of a `StreamsBuilder` share."""

    def __init__(self, explicit_names: ExplicitNames) -> None:
        self.topology = Topology()
        self._numbers = count()
        self._explicit_names = explicit_names
        self._unmaterialized: dict[str, tuple[InternalName, StoreSpec]] = {}

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

    def store_name(self, options: StoreOptions, prefix: str) -> InternalName:
        """Return the user's name of a store, or a generated one."""
        if options.name is not None:
            return InternalName(options.name, chosen=True)
        return InternalName(self.generated(f"{prefix}STATE-STORE-"), chosen=False)

    def guard(self, what: str, name: InternalName) -> None:
        """Warn about a generated name of a store or repartition, or reject it."""
        if name.chosen or self._explicit_names == "off":
            return
        message = (
            f"the {what} {name.name!r} has a generated name, which changes with the program; "
            "name it"
        )
        if self._explicit_names == "error":
            raise topology_error(message)
        warnings.warn(f"{message} (at {caller()})", stacklevel=2)

    # --- nodes and stores

    def add(self, node: kinds.Node) -> str:
        """Add a node; return its name."""
        self.topology.add(node)
        return node.name

    def add_source(self, source: kinds.Source) -> str:
        """Add a source; return its name, or that of an equal source of the same topics."""
        for node in self.topology.nodes.values():
            if isinstance(node, kinds.Source) and (both := {*node.topics} & {*source.topics}):
                if replace(node, name=source.name) == source:
                    return node.name
                raise topology_error(
                    f"{sorted(both)} is already read, with other options, at {node.where}; "
                    "read it once, and branch"
                )
        return self.add(source)

    def add_store(
        self,
        name: InternalName,
        options: StoreOptions,
        kind: StoreKind = "key-value",
        *,
        size: int = 0,
        retention: int = 0,
    ) -> None:
        """Add a store for a node; windows need at least this ``retention``."""
        self._add_spec(name, _spec(name.name, options, kind, size, retention))

    def check_same_builder(self, other: "GraphBuilder") -> None:
        """Raise `TopologyError` if another stream or table belongs to another builder."""
        if other is not self:
            raise topology_error("both must come from one StreamsBuilder")

    def check_stores(self, stores: tuple[str, ...]) -> None:
        """Raise `TopologyError` if a store does not exist."""
        for store in stores:
            if store not in self.topology.stores:
                raise topology_error(
                    f"there is no store {store!r}; add it with builder.add_state_store"
                )

    def source_table(self, node: kinds.Table, name: InternalName, options: StoreOptions) -> None:
        """Add a table of updates; it is materialized if its store is named, or when needed."""
        spec = _spec(name.name, options)
        node = replace(node, versioned=spec.kind == "versioned")
        self.topology.add(node)
        self._unmaterialized[node.name] = name, spec
        if name.chosen or node.versioned:
            self._materialize(node)

    def stores_of(self, table: str) -> tuple[str, ...]:
        """Return the stores that a table's rows are read from; materialize it if it has none."""
        node = self.topology.node(table)
        match node:
            case kinds.Table(store=str(store)):
                return (store,)
            case kinds.Table(operation="source"):
                return self._materialize(node)
            case kinds.Aggregate() | kinds.TableAggregate():
                return (node.store,)
            case kinds.Suppress():
                return (node.store, *self.stores_of(node.table))
            case kinds.TableJoin():
                return (*self.stores_of(node.table), *self.stores_of(node.other))
            case _:
                return tuple(dict.fromkeys(self.stores_of(node.parents[0])))

    def send_old_values(self, table: str, *, force: bool) -> bool:
        """Request old values of a table, by Kafka's rules; return whether its updates have them.

        A table read from a topic is materialized for this only with ``force``.
        """
        node = self.topology.node(table)
        if isinstance(node, kinds.Suppress):
            return self.send_old_values(node.table, force=force)
        if not isinstance(node, kinds.Table):
            return True
        match node.operation:
            case "source":
                if node.store is None and force:
                    self._materialize(node)
                return force or node.store is not None
            case "pass":
                for parent in map(self.topology.node, node.parents):
                    if isinstance(parent, kinds.TableJoin):
                        self.send_old_values(parent.parents[0], force=True)
                return True
        sent = node.store is not None or self.send_old_values(node.parents[0], force=force)
        if sent:
            self.topology.put(replace(node, sends_old_values=True))
        return sent

    def _materialize(self, node: kinds.Table) -> tuple[str, ...]:
        name, spec = self._unmaterialized.pop(node.name)
        self._add_spec(name, spec)
        stores = tuple(dict.fromkeys((*node.stores, spec.name)))
        self.topology.put(replace(node, store=spec.name, stores=stores))
        return (spec.name,)

    def _add_spec(self, name: InternalName, spec: StoreSpec) -> None:
        self.guard("store", name)
        self.topology.add_store(spec)

    def repartition(
        self,
        parent: str,
        name: InternalName,
        options: Repartitioned[Any, Any],
        *,
        keep_null_keys: bool = False,
    ) -> str:
        """Add a repartition by key; return the name of the source that reads it."""
        prefix = name.name.removesuffix("-repartition")
        topic = f"{prefix}-repartition"
        names = [self.generated(f"KSTREAM-{kind}-") for kind in ("SINK", "FILTER", "SOURCE")]
        self.guard("repartition", InternalName(topic, name.chosen))
        if not _is_generated(name.name):
            names = [f"{topic}-{kind}" for kind in ("sink", "filter", "source")]
        sink, null_filter, source = names
        function = _any if keep_null_keys else _has_key
        keep = kinds.Stateless(name=null_filter, operation="filter", function=function)
        self.add(replace(keep, parents=(parent,)))
        to_topic = kinds.Sink(
            name=sink,
            parents=(null_filter,),
            topic=topic,
            key_serde=options.key_serde,
            value_serde=options.value_serde,
            partitioner=options.partitioner,
            partitions=options.partitions,
        )
        return self.add_repartition(to_topic, source)

    def add_repartition(self, sink: kinds.Sink, source: str) -> str:
        """Add both ends of a repartition; return the name of the source."""
        self.add(replace(sink, internal=True))
        return self.add(kinds.Source(name=source, topics=(str(sink.topic),), internal=True))


class StreamOrTable(Generic[K, V]):
    """The node that a stream or table comes from, and the serdes of its records, if known."""

    def __init__(
        self,
        graph: GraphBuilder,
        name: str,
        key_serde: AnySerde = None,
        value_serde: AnySerde = None,
        *,
        rekeyed: bool = False,
    ) -> None:
        self.graph = graph
        self.name = name
        self.key_serde = key_serde
        self.value_serde = value_serde
        self.rekeyed = rekeyed  # the key may have changed since the last repartition


def _own(name: NameLike) -> str | None:
    """Return the user's name, if any."""
    own = name.name if isinstance(name, Named) else name
    if own is not None and not isinstance(own, str):
        raise topology_error(f"a name is a str or a Named, not {own!r}")
    return own


def _is_generated(name: str) -> bool:
    digits = name[-10:]
    return name.startswith("KSTREAM") and name[-11:-10] == "-" and digits.isdigit()


def _has_key(key: Any, value: Any) -> bool:  # noqa: ARG001 a predicate takes both
    return key is not None


def _any(key: Any, value: Any) -> bool:  # noqa: ARG001 a predicate takes both
    return True


def _spec(
    name: str,
    options: StoreOptions,
    kind: StoreKind = "key-value",
    size: int = 0,
    retention: int = 0,
) -> StoreSpec:
    if options.history is not None and kind == "key-value":
        kind, retention = "versioned", milliseconds(options.history, name="history")
    if options.retention is not None:
        asked = milliseconds(options.retention, name="retention")
        if asked < retention:
            raise topology_error(
                f"the store {name!r} needs a retention of at least {retention} ms "
                f"(size and grace), not {asked} ms"
            )
        retention = asked
    return StoreSpec(
        name=name,
        kind=kind,
        size=size,
        retention=retention,
        key_serde=options.key_serde,
        value_serde=options.value_serde,
        changelog=options.changelog,
    )
