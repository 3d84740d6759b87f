"""Branches of a stream: each record goes to the first branch whose predicate is true."""

from collections.abc import Callable
from dataclasses import replace
from typing import Generic

from thulawa.streams import kstream
from thulawa.streams.graph_builder import NameLike
from thulawa.streams.operator_options import Branched, or_default
from thulawa.streams.type_variables import K, V
from thulawa.topology.functions import check_function
from thulawa.topology.nodes import Branch, Stateless


class BranchedKStream(Generic[K, V]):
    """The result of ``stream.split()``, to which branches are added one by one."""

    def __init__(self, stream: "kstream.KStream[K, V]", named: NameLike) -> None:
        self._stream = stream
        self._name = stream.graph.named(named, "KSTREAM-BRANCH-")
        self._branches: dict[str, kstream.KStream[K, V]] = {}
        stream.graph.add(
            Branch(name=self._name, parents=(stream.name,), predicates=(), children=())
        )

    def branch(
        self, predicate: Callable[[K, V], object], branched: Branched | None = None
    ) -> "BranchedKStream[K, V]":
        """Add a branch for the records for which the predicate is true.

        >>> def program(s):
        ...     parts = s.split(named="is-").branch(lambda k, v: v < 0, Branched.as_("negative"))
        ...     return parts.no_default_branch()["is-negative"]
        >>> preview(program, ("a", 1), ("b", -1))
        [('b', -1)]
        """
        check_function(predicate, "branch", ("key", "value"))
        options, node = or_default(branched, Branched), self._node()
        child = self._name + (str(len(node.children) + 1) if options.name is None else options.name)
        predicates, children = (*node.predicates, predicate), (*node.children, child)
        self._add(child, options, replace(node, predicates=predicates, children=children))
        return self

    def default_branch(
        self, branched: Branched | None = None
    ) -> "dict[str, kstream.KStream[K, V]]":
        """Add the branch for all other records; return all branches by name.

        >>> def program(s):
        ...     parts = s.split(named="v-").branch(lambda k, v: v > 9)
        ...     return parts.default_branch(Branched.as_("small"))["v-small"]
        >>> preview(program, ("a", 10), ("b", 7))
        [('b', 7)]
        """
        options = or_default(branched, Branched)
        child = self._name + ("0" if options.name is None else options.name)
        self._add(child, options, replace(self._node(), default=child))
        return self._branches

    def no_default_branch(self) -> "dict[str, kstream.KStream[K, V]]":
        """Drop all other records; return all branches by name.

        A branch whose function returned None is not included.

        >>> def program(s):
        ...     loud = Branched.with_function(lambda part: part.map_values(str.upper), "a")
        ...     parts = s.split(named="is-").branch(lambda k, v: "a" in v, loud)
        ...     return parts.no_default_branch()["is-a"]
        >>> preview(program, ("k", "tea"), ("k", "rum"))
        [('k', 'TEA')]
        """
        return self._branches

    def _node(self) -> Branch:
        node = self._stream.graph.topology.node(self._name)
        assert isinstance(node, Branch)
        return node

    def _add(self, child: str, options: Branched, node: Branch) -> None:
        """Add the branch's first node, and replace the node of all branches."""
        graph = self._stream.graph
        graph.topology.put(node)
        graph.generated(child)  # Kafka counts here too
        graph.add(Stateless(name=child, parents=(self._name,), operation="pass"))
        stream = self._stream.at(child)
        result = stream if options.chain is None else options.chain(stream)
        if result is not None:
            self._branches[child] = result
