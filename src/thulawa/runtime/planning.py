"""From a topology to stages: which sub-topology runs where, after which, in how many tasks.

A host that runs whole batches, as Spark does, runs a program as a line of stages. Sub-topologies
that only look at one record at a time run where their topic is read, in the *front*. The
others stand in the stage after those that feed them, several side by side where they do not.
A repartition that leads on is a shuffle between two stages; one that leads back, as the answers
of a foreign-key join do, is a topic, read with the next batch. So is one whose records may differ
when a batch runs again (`runtime.durability`).
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from thulawa.core.errors import ConfigurationError, TopologyError
from thulawa.core.partitioning import partition_of
from thulawa.core.records import Windowed
from thulawa.core.serdes import Serde, Serdes
from thulawa.runtime.durability import nondeterministic_repartitions
from thulawa.runtime.output_encoder import chosen_partition
from thulawa.runtime.partition_groups import (
    Assignment,
    PartitionGrouper,
    by_number,
    partition_groups,
)
from thulawa.runtime.unsupported import check_runs
from thulawa.state.key_identity import PLAIN, Keys
from thulawa.topology.key_serdes import KeySerdes, windowed
from thulawa.topology.nodes import (
    Aggregate,
    AsyncCall,
    Branch,
    GlobalTable,
    LookupJoin,
    Node,
    PartialAggregate,
    Process,
    Sink,
    Source,
    Stateless,
)
from thulawa.topology.subtopologies import SubTopology
from thulawa.topology.topology import Topology

__all__ = [
    "SOURCE_STAGE",
    "Plan",
    "Repartition",
    "StagedSubTopology",
    "checkpoint_names",
    "has_timers",
    "plan",
]

SOURCE_STAGE = 0
# what holds nothing from one batch to the next
_ONE_BY_ONE = (Source, Sink, Stateless, Branch, AsyncCall, PartialAggregate)


@dataclass(frozen=True, slots=True)
class StagedSubTopology:
    """A sub-topology in its place: the stage, and the partitions of each of its tasks."""

    group: SubTopology
    stage: int
    tasks: tuple[Mapping[str, tuple[int, ...]], ...]

    def task_of(self, topic: str, partition: int) -> int:
        """Return the task that reads a partition; a new partition joins the task of its number."""
        for number, partitions in enumerate(self.tasks):
            if partition in partitions.get(topic, ()):
                return number
        return partition % len(self.tasks)


@dataclass(frozen=True, slots=True)
class Repartition:
    """A topic between two sub-topologies, and how its records find their partition.

    Keys that are plain data travel as they are, others as their identities; the source of the far
    end reads these. ``is_topic``: it is not a shuffle. ``durable``: because its records may differ
    when a batch runs again, for the reason in ``nondeterminism``, or because they might when the
    checkpoint was made.
    """

    topic: str
    partitions: int
    key_serde: Serde[Any]
    partitioner: Callable[..., int] | None
    is_topic: bool
    value_serde: Serde[Any] | None = None
    durable: bool = False
    nondeterminism: str | None = None

    @property
    def kind(self) -> str:
        """Say whether it is a shuffle or a topic, and why."""
        if self.nondeterminism is not None:
            return f"a topic: its records may differ on a re-run because of {self.nondeterminism}"
        if self.durable:
            return "a topic, as the checkpoint has it"
        return "a topic, because it leads back" if self.is_topic else "a shuffle"

    def router(self) -> Callable[[Any, Any], tuple[int, Any]]:
        """Return what gives the partition of a record and the key that it travels under.

        The partition is where a topic with this key's bytes has it. It raises `SerializationError`
        for a key that its serde cannot write.
        """
        keys, partitions, partitioner = Keys(self.key_serde), self.partitions, self.partitioner
        identity_of, text, travel = keys.identity, keys.text, keys.travels_plain
        dump = self.key_serde.dumps

        def route(key: Any, value: Any) -> tuple[int, Any]:
            identity = key if type(key) is text and key.isascii() else identity_of(key)
            travelling = key if travel else identity
            if partitions == 1:
                return 0, travelling
            if partitioner is not None:
                chosen = chosen_partition(partitioner, key, value, partitions, self.topic)
                return chosen, travelling
            data = identity if type(identity) is bytes else dump(identity)
            return partition_of(data, partitions), travelling

        return route


@dataclass(frozen=True, slots=True)
class Plan:
    """Where everything runs. ``topology`` has its serdes filled in."""

    topology: Topology
    parts: Mapping[int, StagedSubTopology]
    readers: Mapping[str, int]  # topic -> id of the sub-topology that reads it
    repartitions: Mapping[str, Repartition]
    global_topics: frozenset[str] = field(default_factory=frozenset)

    def global_tables(self, group: SubTopology) -> list[GlobalTable]:
        """Return the global tables that a sub-topology looks into; its tasks have them whole."""
        looked_into = {node.table for node in group.nodes if isinstance(node, LookupJoin)}
        stores = {store for node in group.nodes for store in node.stores}
        return [
            node
            for node in self.topology.nodes.values()
            if isinstance(node, GlobalTable)
            and (node.name in looked_into or stores & {*node.stores})
        ]

    def fed_by(self, part: StagedSubTopology) -> set[str]:
        """Return the topics whose records reach a part, be it by shuffles from other parts."""
        found: set[str] = set()
        waiting = [part]
        while waiting:
            for topic in (topic for task in waiting.pop().tasks for topic in task):
                one = self.repartitions.get(topic)
                if one is None or one.is_topic:
                    found.add(topic)
                    continue
                waiting += [
                    other
                    for other in self.parts.values()
                    if other is not part and any(sink.topic == topic for sink in other.group.sinks)
                ]
        return found

    @property
    def has_timers(self) -> bool:
        """Whether a processor of the user's own may ask to be called by the clock."""
        return has_timers(self.topology.nodes.values())

    @property
    def stages(self) -> int:
        """How many stages there are after the front."""
        return max((part.stage for part in self.parts.values()), default=0)

    @property
    def tasks(self) -> int:
        """How many tasks the widest stage has."""
        return max((len(part.tasks) for part in self.parts.values() if part.stage), default=1)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are read."""
        shuffles = {name for name, one in self.repartitions.items() if not one.is_topic}
        return (*(name for name in self.readers if name not in shuffles), *self.global_topics)


def has_timers(nodes: Iterable[Node]) -> bool:
    """Return whether any of these nodes may ask to be called by the clock."""
    return any(
        isinstance(node, Process) or (isinstance(node, AsyncCall) and node.operation == "process")
        for node in nodes
    )


def plan(  # noqa: PLR0913 all but two are optional and named
    topology: Topology,
    partitions: Mapping[str, int],
    *,
    key_serde: Serde[Any] | None = None,
    value_serde: Serde[Any] | None = None,
    grouper: PartitionGrouper = by_number,
    in_order: bool = True,
    keeps_time: bool = False,
    assigned: Assignment | None = None,
    exactly_once: bool = True,
) -> Plan:
    """Put every sub-topology in its place. ``partitions`` are those of the topics outside.

    The serdes stand in where the program names none (`with_serdes`). With ``in_order`` the records
    of several topics meet in the order of their timestamps even where nothing is remembered. With
    ``keeps_time`` records may be given the time of their partition, which must be remembered.
    Tasks with state keep the partitions that they were ``assigned``, and repartitions that were
    topics stay topics. With ``exactly_once`` those whose records may differ on a re-run are topics.
    """
    check_runs(topology)
    filled = with_serdes(topology, key_serde, value_serde)
    groups = [group for group in filled.subtopologies() if not group.is_global]
    readers = {
        topic: group.id for group in groups for node in group.sources for topic in node.topics
    }
    in_front = partial(_is_stateless, in_order=in_order, keeps_time=keeps_time)
    assigned = assigned or Assignment()
    reasons = nondeterministic_repartitions(groups) if exactly_once else {}
    stages = _stages(groups, readers, in_front, reasons.keys() | assigned.durable)
    counts = _counts(groups, readers, partitions, assigned.repartitions)
    repartitions: dict[str, Repartition] = {}
    parts: dict[int, StagedSubTopology] = {}
    for group in groups:
        topics = {topic: counts[topic] for node in group.sources for topic in node.topics}
        _check_copartitioned(group, topics, grouper)
        fresh = partition_groups(topics, grouper)
        known_by = checkpoint_names(group, stages[group.id])
        tasks = assigned.applied(known_by, topics, fresh)
        parts[group.id] = StagedSubTopology(group, stages[group.id], tuple(tasks))
        for sink in group.sinks:
            if sink.internal:
                assert isinstance(sink.topic, str)
                assert sink.key_serde is not None
                leads_on = stages[readers[sink.topic]] > stages[group.id]
                durable = sink.topic in reasons or sink.topic in assigned.durable
                repartitions[sink.topic] = Repartition(
                    sink.topic,
                    counts[sink.topic],
                    sink.key_serde,
                    sink.partitioner,
                    is_topic=durable or not leads_on,
                    value_serde=sink.value_serde,
                    durable=durable,
                    nondeterminism=reasons.get(sink.topic),
                )
    return Plan(
        filled,
        parts,
        readers,
        repartitions,
        frozenset(node.topic for node in topology.nodes.values() if isinstance(node, GlobalTable)),
    )


def _stages(
    groups: list[SubTopology],
    readers: Mapping[str, int],
    in_front: Callable[[SubTopology], bool],
    durable: Collection[str],
) -> dict[int, int]:
    """Assign each sub-topology its stage, after those that feed it as far as that can be.

    What comes through a topic that is ``durable`` comes with the next batch, from the front.
    """
    feeds: dict[int, set[int]] = {group.id: set() for group in groups}
    for group in groups:
        for sink in group.sinks:
            if sink.internal and sink.topic not in durable:
                feeds[readers[str(sink.topic)]].add(group.id)
    stages: dict[int, int] = {}
    visiting: set[int] = set()

    def stage_of(group: SubTopology) -> int:
        if group.id not in stages:
            visiting.add(group.id)
            before = [
                stage_of(other)
                for other in groups
                if other.id in feeds[group.id] and other.id not in visiting
            ]
            visiting.discard(group.id)
            alone = not feeds[group.id] and in_front(group)
            stages[group.id] = SOURCE_STAGE if alone else 1 + max(before, default=SOURCE_STAGE)
        return stages[group.id]

    for group in groups:
        stage_of(group)
    return stages


def checkpoint_names(group: SubTopology, stage: int) -> tuple[str, ...]:
    """Return the names under which a checkpoint remembers whose partitions make a task.

    These are its stores. What has none may still hold records back, or look into global tables of
    which each task has a copy: it is known by its topics, written as no store can be named.
    """
    if group.stores or stage == SOURCE_STAGE:
        return tuple(group.stores)
    return tuple(f"/{topic}" for source in group.sources for topic in source.topics)


def _is_stateless(group: SubTopology, *, in_order: bool, keeps_time: bool) -> bool:
    topics = [topic for source in group.sources for topic in source.topics]
    return (
        not keeps_time
        and not group.stores
        and (len(topics) == 1 or not in_order)
        and all(isinstance(node, _ONE_BY_ONE) for node in group.nodes)
        and not any(isinstance(n, AsyncCall) and n.operation == "process" for n in group.nodes)
        and all(source.timestamp_extractor is None for source in group.sources)
    )


def _counts(
    groups: list[SubTopology],
    readers: Mapping[str, int],
    partitions: Mapping[str, int],
    kept: Mapping[str, int],
) -> dict[str, int]:
    """Return the number of partitions of every topic; inner ones follow what they meet or come of.

    Those that are ``kept`` stay as they were, unless the program says how many there are.
    """
    inner = {
        str(sink.topic): (sink, group) for group in groups for sink in group.sinks if sink.internal
    }
    counts = {topic: partitions[topic] for topic in readers if topic not in inner}
    counts |= {topic: kept[topic] for topic in inner if topic in kept}
    counts |= {topic: sink.partitions for topic, (sink, _) in inner.items() if sink.partitions}
    by_id = {group.id: group for group in groups}

    def widest(group: SubTopology) -> int:
        known = [counts[t] for source in group.sources for t in source.topics if t in counts]
        return max(known, default=0)

    waiting = [topic for topic in inner if topic not in counts]
    while waiting:
        left = []
        for topic in waiting:
            count = widest(by_id[readers[topic]]) or widest(inner[topic][1])
            if count:
                counts[topic] = count
            else:
                left.append(topic)
        if len(left) == len(waiting):
            raise TopologyError(f"nothing says how many partitions {left[0]!r} has")
        waiting = left
    return counts


def _check_copartitioned(
    group: SubTopology, topics: Mapping[str, int], grouper: PartitionGrouper
) -> None:
    if grouper is by_number and group.stores and len(set(topics.values())) > 1:
        listed = ", ".join(f"{topic} has {count}" for topic, count in sorted(topics.items()))
        raise ConfigurationError(
            f"topics that are joined must have the same number of partitions: {listed}; "
            "create them alike, repartition one of them, or give a grouper of your own"
        )


# --- serdes


def with_serdes(topology: Topology, key: Serde[Any] | None, value: Serde[Any] | None) -> Topology:
    """Return a program with the serdes of all its topics and stores.

    ``key`` and ``value`` are the application's own defaults, of topics (else text and JSON) and of
    keys inside for which nothing says more (else plain data). Raises `TopologyError` where keys
    that are joined are written differently.
    """
    outside = key or Serdes.string()
    serdes = KeySerdes(topology.nodes, topology.stores, outside, key or PLAIN)
    serdes.check()
    filled = Topology()
    for store in topology.stores.values():
        filled.add_store(replace(store, key_serde=serdes.of_store(store.name)))
    for node in topology.nodes.values():
        inside = with_inner_serdes(node, serdes)
        filled.add(inside if inside is not node else _filled(topology, node, outside, value))
    return filled


def with_inner_serdes(node: Node, serdes: KeySerdes) -> Node:
    """Return a node with the serdes of keys inside the program; values there go as they are."""
    if isinstance(node, Sink) and node.internal:
        return replace(node, key_serde=serdes.of_repartition(str(node.topic)))
    if isinstance(node, Source) and node.internal:
        keys = Keys(serdes.of_repartition(node.topics[0]))
        return replace(node, key_serde=keys.reader, value_serde=None)
    return serdes.filled(node)


def _filled(topology: Topology, node: Node, key: Serde[Any], value: Serde[Any] | None) -> Node:
    if not isinstance(node, Source | Sink | GlobalTable):
        return node
    if isinstance(node, Sink) and node.key_serde is None:
        key = _windowed(topology, node, key)
    value = node.value_serde or value or Serdes.json()
    return replace(node, key_serde=node.key_serde or key, value_serde=value)


def _windowed(topology: Topology, sink: Sink, inner: Serde[Any]) -> Serde[Any]:
    """Write windowed keys as Kafka does; which kind of window they have, their table tells."""
    window = _window_above(topology, sink)
    if window is None:
        return inner
    serde = windowed(inner, window)

    def serialize(key: Any) -> bytes | None:
        return (serde if isinstance(key, Windowed) else inner).serialize(key)

    return Serde(f"{inner.name}, windowed or not", serialize, serde.deserialize)


def _window_above(topology: Topology, node: Node) -> Any:
    for parent in node.parents:
        above = topology.node(parent)
        if isinstance(above, Aggregate) and above.window is not None:
            return above.window
        found = _window_above(topology, above)
        if found is not None:
            return found
    return None
