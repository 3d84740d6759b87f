"""Infer the key serdes of stores and repartitions.

A program may name key serdes at a topic, a grouping, a join or a store; the others are inferred.
A node that does not change keys passes its input's serde on. A repartition without a serde uses
that of the other side of the join it feeds, because equal keys must land in the same partition.
Without a join it uses the application default, else plain data (`state.key_identity.PLAIN`).
A join whose sides are partitioned by different key serdes is rejected: it would never match.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from thulawa.core.serdes import Serde, Serdes
from thulawa.errors import TopologyError
from thulawa.state.key_identity import PLAIN
from thulawa.state.specs import StoreSpec
from thulawa.topology import nodes as kinds
from thulawa.topology.nodes import Node, Sink, Source, Stateless
from thulawa.topology.windows import SessionWindows

_REKEYS = {"map", "flat_map", "select_key", "process"}


def windowed(inner: Serde[Any], window: kinds.WindowKind) -> Serde[Any]:
    """Return the serde of the windowed keys of a table."""
    if isinstance(window, SessionWindows):
        return Serdes.session_windowed(inner)
    return Serdes.time_windowed(inner, getattr(window, "size", 1))


def written_as(serde: Serde[Any]) -> str:
    """Return the name of a serde's format; plain data that is text has the format of text."""
    return serde.name.replace(PLAIN.name, Serdes.string().name)


class KeySerdes:
    """Infer key serdes; the default is ``outside`` for topics and ``inside`` for the rest."""

    def __init__(
        self,
        nodes: Mapping[str, Node],
        stores: Mapping[str, StoreSpec],
        outside: Serde[Any],
        inside: Serde[Any] = PLAIN,
    ) -> None:
        self._nodes = nodes
        self._stores = stores
        self._outside = outside
        self._inside = inside
        self._senders = {
            str(node.topic): node
            for node in nodes.values()
            if isinstance(node, Sink) and node.internal
        }
        self._owners = {store: parent for node in nodes.values() for store, parent in _owned(node)}
        self._join_sources = [
            [self._sources(side) for side in sides] for sides in self._joins().values()
        ]
        self._repartitions: dict[str, Serde[Any]] = {}

    def check(self) -> None:
        """Raise `TopologyError` if the sides of a join are partitioned by different key bytes."""
        for name, sides in self._joins().items():
            met: dict[str, str] = {}
            for source in (source for side in sides for source in self._sources(side)):
                if self._is_by_key(source):
                    met.setdefault(written_as(self.leaving(source.name)), source.topics[0])
            if len(met) > 1:
                listed = ", ".join(f"{topic!r} as {serde}" for serde, topic in met.items())
                raise TopologyError(
                    f"the sides of a join have different key serdes, so equal keys are in "
                    f"different partitions: {listed}; use the same key_serde for both, or "
                    f"repartition one of them with the other's",
                    where=self._nodes[name].where or None,
                )

    def of_repartition(self, topic: str) -> Serde[Any]:
        """Return the serde of the keys of a repartition."""
        if topic not in self._repartitions:
            self._repartitions[topic] = self._repartition(topic)
        return self._repartitions[topic]

    def of_store(self, name: str) -> Serde[Any]:
        """Return the key serde of a store; for a window store that of the key alone."""
        given = self._stores[name].key_serde
        if given is not None:
            return given
        parent = self._owners.get(name)
        # a processor's store may have any keys
        return PLAIN if parent is None else self.leaving(parent)

    def leaving(self, name: str) -> Serde[Any]:  # noqa: PLR0911 one per kind of node
        """Return the serde of the keys that leave a node."""
        match node := self._nodes[name]:
            case Source(internal=True):
                return self.of_repartition(node.topics[0])
            case Source() | kinds.GlobalTable():
                return node.key_serde or self._outside
            case kinds.Aggregate(window=window) if window is not None:
                return windowed(self.of_store(node.store), window)
            case kinds.Aggregate() | kinds.TableAggregate() | kinds.Table(store=str()):
                return self.of_store(str(node.store))
            case kinds.TableGrouping():
                return node.key_serde or self._inside
            case kinds.ForeignKeyStep(step="subscribe"):
                return self._foreign(node)
            case kinds.ForeignKeyStep(step="answer" | "change"):
                return self._primary(node)
            case _ if _rekeys(node) or not node.parents:
                return self._inside
            case _:
                return self.leaving(node.parents[0])

    def filled(self, node: Node) -> Node:
        """Return a node with the key serdes that it needs to compare keys."""
        match node:
            case kinds.PartialAggregate() | kinds.TableGrouping():
                serde = next(self._repartition_below(node.name), node.key_serde)
                return replace(node, key_serde=serde)
            case kinds.ForeignKeyStep():
                key_serde, foreign_serde = self._primary(node), self._foreign(node)
                return replace(node, key_serde=key_serde, foreign_serde=foreign_serde)
            case kinds.AsyncCall():
                return replace(node, key_serde=self.leaving(node.parents[0]))
            case _:
                return node

    def _repartition_below(self, name: str) -> Iterator[Serde[Any]]:
        for node in self._nodes.values():
            if name in node.parents:
                if isinstance(node, Sink) and node.internal:
                    yield self.of_repartition(str(node.topic))
                elif isinstance(node, Stateless):
                    yield from self._repartition_below(node.name)

    def _primary(self, step: kinds.ForeignKeyStep) -> Serde[Any]:
        return self.leaving(self._table_of(step, "resolve"))

    def _foreign(self, step: kinds.ForeignKeyStep) -> Serde[Any]:
        return self.leaving(self._table_of(step, "answer"))

    def _table_of(self, step: kinds.ForeignKeyStep, wanted: str) -> str:
        steps = (node for node in self._nodes.values() if isinstance(node, kinds.ForeignKeyStep))
        return next(one.table for one in steps if (one.join, one.step) == (step.join, wanted))

    # --- joins

    def _joins(self) -> dict[str, list[str]]:
        """Return, by joining node, the nodes whose equal keys must be in one partition."""
        found: dict[str, list[str]] = {}
        pairs: dict[str, str] = {}
        for node in self._nodes.values():
            match node:
                case kinds.StreamJoin(pair=shared) | kinds.Aggregate(store=shared):
                    found.setdefault(pairs.setdefault(shared, node.name), []).extend(node.parents)
                case kinds.TableJoin(side="left"):
                    found[node.name] = [node.table, node.other]
                case kinds.LookupJoin(key_selector=None) | kinds.ForeignKeyStep(step="answer"):
                    found[node.name] = [*node.parents, node.table]
                case _:
                    pass
        return found

    def _sources(self, name: str) -> list[Source]:
        """Return the sources of a node whose keys reach it unchanged."""
        node = self._nodes[name]
        if isinstance(node, Source):
            return [node]
        if _rekeys(node):
            return []
        return [source for parent in node.parents for source in self._sources(parent)]

    def _is_by_key(self, source: Source) -> bool:
        return not source.internal or self._senders[source.topics[0]].partitioner is None

    def _repartition(self, topic: str) -> Serde[Any]:
        sender = self._senders[topic]
        if sender.key_serde is not None:
            return sender.key_serde
        if sender.answers:
            return self.leaving(sender.parents[0])
        for sides in self._join_sources:
            met = [source for side in sides for source in side if self._is_by_key(source)]
            if any(topic in source.topics for source in met):
                for source in met:
                    known = self._known(source)
                    if known is not None:
                        return known
        return self._inside

    def _known(self, source: Source) -> Serde[Any] | None:
        """Return the key serde of a topic if it does not depend on a join."""
        if source.internal:
            return self._senders[source.topics[0]].key_serde
        return source.key_serde or self._outside


def _rekeys(node: Node) -> bool:
    """Return whether a node changes keys."""
    match node:
        case Stateless() | kinds.AsyncCall():
            return node.operation in _REKEYS
        case kinds.Process():
            return not node.values_only
        case kinds.ForeignKeyStep():
            return node.step in ("subscribe", "answer", "change")
        case _:
            return isinstance(node, kinds.TableGrouping)


def _owned(node: Node) -> Iterator[tuple[str, str]]:
    """Yield the stores whose keys are a node's input keys, with the node they come from."""
    match node:
        case kinds.Aggregate() | kinds.TableAggregate() | kinds.JoinBuffer() | kinds.Suppress():
            yield node.store, node.parents[0]
        case kinds.ForeignKeyStep(step="receive" | "resolve"):
            yield node.store, node.parents[0]
        case (
            kinds.Table(store=str(store))
            | kinds.StreamJoin(outer_store=str(store))
            | kinds.LookupJoin(buffer=str(store))
        ):
            yield store, node.parents[0]
        case kinds.GlobalTable(stores=(store, *_)):
            yield store, node.name
        case _:
            pass
