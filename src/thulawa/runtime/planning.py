"""Plan a topology: assign sub-topologies to stages, and partitions to tasks.

A micro-batch runs the stages in sequence. Stateless sub-topologies run in the *source stage*, where
their topic is read. Every other sub-topology runs in the stage after those that feed it; several
may share a stage. A repartition to a later stage is a shuffle. One to the same or an earlier stage,
such as the answers of a foreign-key join, is a topic that the next batch reads, and so is one whose
records may differ when a batch runs again (`nondeterministic_repartitions`).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from thulawa.core.partitioning import partition_of
from thulawa.core.records import Windowed
from thulawa.core.serdes import Serde, Serdes
from thulawa.errors import ConfigurationError, TopologyError
from thulawa.runtime import partition_groups
from thulawa.runtime.output_encoder import chosen_partition
from thulawa.runtime.partition_groups import Assignment, PartitionGrouper, by_number
from thulawa.state.key_identity import PLAIN, Keys
from thulawa.topology import nodes
from thulawa.topology.determinism import node_nondeterminism
from thulawa.topology.key_serdes import KeySerdes, windowed
from thulawa.topology.subtopologies import SubTopology
from thulawa.topology.topology import Topology

SOURCE_STAGE = 0
# nodes without state between batches
_STATELESS = (
    nodes.Source,
    nodes.Sink,
    nodes.Stateless,
    nodes.Branch,
    nodes.AsyncCall,
    nodes.PartialAggregate,
)


@dataclass(frozen=True, slots=True)
class StagedSubTopology:
    """A sub-topology with its stage and the partitions of each of its tasks."""

    group: SubTopology
    stage: int
    tasks: tuple[Mapping[str, tuple[int, ...]], ...]

    def task_of(self, topic: str, partition: int) -> int:
        """Return the number of the task that reads a partition; for a new one, by its number."""
        for number, partitions in enumerate(self.tasks):
            if partition in partitions.get(topic, ()):
                return number
        return partition % len(self.tasks)


@dataclass(frozen=True, slots=True)
class Repartition:
    """A repartition between two sub-topologies.

    Keys that are plain data are sent as they are, others as their identities, which the receiving
    source deserializes. ``is_topic``: it is a topic, not a shuffle. ``durable``: it is one because
    its records may differ when a batch runs again, now (``nondeterminism`` is the reason) or when
    the checkpoint was created.
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
        """The kind of repartition, shuffle or topic, with the reason."""
        if self.nondeterminism is not None:
            return f"a topic: its records may differ on a re-run because of {self.nondeterminism}"
        if self.durable:
            return "a topic, as the checkpoint has it"
        return "a topic, because an earlier stage reads it" if self.is_topic else "a shuffle"

    def router(self) -> Callable[[Any, Any], tuple[int, Any]]:
        """Return a function that gives the partition of a record and the key to send.

        The partition is that of the key's bytes in a topic. The function raises
        `SerializationError` for a key that the serde cannot write.
        """
        keys, partitions, partitioner = Keys(self.key_serde), self.partitions, self.partitioner
        identity_of, text, plain = keys.identity, keys.text, keys.travels_plain
        dump = self.key_serde.dumps

        def route(key: Any, value: Any) -> tuple[int, Any]:
            identity = key if type(key) is text and key.isascii() else identity_of(key)
            sent = key if plain else identity
            if partitions == 1:
                return 0, sent
            if partitioner is not None:
                chosen = chosen_partition(partitioner, key, value, partitions, self.topic)
                return chosen, sent
            data = identity if type(identity) is bytes else dump(identity)
            return partition_of(data, partitions), sent

        return route


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of an application; the serdes of ``topology`` are filled in."""

    topology: Topology
    parts: Mapping[int, StagedSubTopology]
    readers: Mapping[str, int]  # topic -> id of the sub-topology that reads it
    repartitions: Mapping[str, Repartition]
    global_topics: frozenset[str] = field(default_factory=frozenset)

    def global_tables(self, group: SubTopology) -> list[nodes.GlobalTable]:
        """Return the global tables that a sub-topology reads."""
        looked_into = {node.table for node in group.nodes if isinstance(node, nodes.LookupJoin)}
        stores = {store for node in group.nodes for store in node.stores}
        return [
            node
            for node in self.topology.nodes.values()
            if isinstance(node, nodes.GlobalTable)
            and (node.name in looked_into or stores & {*node.stores})
        ]

    def fed_by(self, part: StagedSubTopology) -> set[str]:
        """Return the topics whose records reach a part, directly or through shuffles."""
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
        """Whether a processor may schedule punctuations."""
        return has_timers(self.topology.nodes.values())

    @property
    def stages(self) -> int:
        """The number of stages after the source stage."""
        return max((part.stage for part in self.parts.values()), default=0)

    @property
    def tasks(self) -> int:
        """The largest number of tasks of a sub-topology behind the source stage."""
        return max((len(part.tasks) for part in self.parts.values() if part.stage), default=1)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are read."""
        shuffles = {name for name, one in self.repartitions.items() if not one.is_topic}
        return (*(name for name in self.readers if name not in shuffles), *self.global_topics)


def has_timers(group_nodes: Iterable[nodes.Node]) -> bool:
    """Return whether any of these nodes is a processor, which may schedule punctuations."""
    return any(
        isinstance(node, nodes.Process)
        or (isinstance(node, nodes.AsyncCall) and node.operation == "process")
        for node in group_nodes
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
    """Plan a topology; ``partitions`` are the partition counts of its external topics.

    The serdes are defaults where the program names none (`with_serdes`). With ``in_order`` records
    of several topics are merged by timestamp even in stateless sub-topologies. With ``keeps_time``
    a record may get its partition's time, which is state. Tasks with state keep their ``assigned``
    partitions, and repartitions that were topics stay topics. With ``exactly_once`` repartitions
    whose records may differ on a re-run are topics. Raises `TopologyError` for options that would
    have no effect or fail when a record is processed.
    """
    for node in topology.nodes.values():
        _check_supported(node)
    filled = with_serdes(topology, key_serde, value_serde)
    groups = [group for group in filled.subtopologies() if not group.is_global]
    readers = {
        topic: group.id for group in groups for node in group.sources for topic in node.topics
    }
    is_stateless = partial(_is_stateless, in_order=in_order, keeps_time=keeps_time)
    assigned = assigned or Assignment()
    reasons = nondeterministic_repartitions(groups) if exactly_once else {}
    stages = _stages(groups, readers, is_stateless, reasons.keys() | assigned.durable)
    counts = _counts(groups, readers, partitions, assigned.repartitions)
    repartitions: dict[str, Repartition] = {}
    parts: dict[int, StagedSubTopology] = {}
    for group in groups:
        topics = {topic: counts[topic] for node in group.sources for topic in node.topics}
        _check_copartitioned(group, topics, grouper)
        fresh = partition_groups.partition_groups(topics, grouper)
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
    tables = (node for node in topology.nodes.values() if isinstance(node, nodes.GlobalTable))
    return Plan(filled, parts, readers, repartitions, frozenset(node.topic for node in tables))


def _stages(
    groups: list[SubTopology],
    readers: Mapping[str, int],
    is_stateless: Callable[[SubTopology], bool],
    durable: Collection[str],
) -> dict[int, int]:
    """Assign each sub-topology a stage after those that feed it, except in cycles.

    Records of a ``durable`` repartition come with the next batch, from the source stage.
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
            at_source = not feeds[group.id] and is_stateless(group)
            stages[group.id] = SOURCE_STAGE if at_source else 1 + max(before, default=SOURCE_STAGE)
        return stages[group.id]

    for group in groups:
        stage_of(group)
    return stages


def checkpoint_names(group: SubTopology, stage: int) -> tuple[str, ...]:
    """Return the names under which a checkpoint records the partition groups of a sub-topology.

    These are its stores. A sub-topology without stores may still buffer records, or have copies of
    global tables: it is recorded under ``/`` and each of its topics, which is no name of a store.
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
        and all(isinstance(node, _STATELESS) for node in group.nodes)
        and not any(
            isinstance(n, nodes.AsyncCall) and n.operation == "process" for n in group.nodes
        )
        and all(source.timestamp_extractor is None for source in group.sources)
    )


def _counts(
    groups: list[SubTopology],
    readers: Mapping[str, int],
    partitions: Mapping[str, int],
    kept: Mapping[str, int],
) -> dict[str, int]:
    """Return the partition count of every topic.

    A repartition has the count that the program names, else that in ``kept``, else that of the
    topics it is joined with, else that of the topics it is computed from.
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
            raise TopologyError(
                f"the partition count of {left[0]!r} is unknown: name it with Repartitioned"
            )
        waiting = left
    return counts


def _check_supported(node: nodes.Node) -> None:
    reason = None
    match node:
        case nodes.Source(offset_reset="latest"):
            reason = (
                "an application continues from its checkpoint, and without one from the "
                "earliest record; remove offset_reset"
            )
        case nodes.Sink(topic=topic, partitioner=partitioner) if callable(topic) and partitioner:
            reason = (
                "a partitioner needs a fixed topic, because it needs its number of partitions; "
                "name the topic, or remove the partitioner"
            )
        case _:
            return
    raise TopologyError(f"{node.name!r} cannot run: {reason}", where=node.where or None)


def _check_copartitioned(
    group: SubTopology, topics: Mapping[str, int], grouper: PartitionGrouper
) -> None:
    if grouper is by_number and group.stores and len(set(topics.values())) > 1:
        listed = ", ".join(f"{topic} has {count}" for topic, count in sorted(topics.items()))
        raise ConfigurationError(
            f"topics that are joined must have the same number of partitions: {listed}; "
            "create them alike, repartition one of them, or pass a grouper"
        )


def nondeterministic_repartitions(groups: Iterable[SubTopology]) -> dict[str, str]:
    """Return the repartition topics whose records may differ on a re-run, each with the reason.

    A shuffle sends records to tasks that commit one by one. If the batch fails between two of these
    commits, it runs again and recomputes everything upstream of the shuffle. If a function then
    returns something else, a record may reach a different task and be written twice or not at all.
    A repartition topic is written once and then read as it is. Under exactly once a repartition is
    therefore a shuffle only if every function upstream, back to the topics that its sub-topology
    reads, is known to be deterministic (`topology.determinism`).
    """
    reasons: dict[str, str] = {}
    for group in groups:
        for sink in group.sinks:
            for node in _upstream(group, sink) if sink.internal else ():
                reason = node_nondeterminism(node)
                if reason is not None:
                    where = f" (at {node.where})" if node.where else ""
                    reasons.setdefault(str(sink.topic), f"{node.name}{where}: {reason}")
    return reasons


def _upstream(group: SubTopology, sink: nodes.Sink) -> Iterator[nodes.Node]:
    """Yield the nodes whose results reach a sink, through other nodes or through a store."""
    by_name = {node.name: node for node in group.nodes}
    users: dict[str, list[str]] = {}
    for node in group.nodes:
        for store in node.stores:
            users.setdefault(store, []).append(node.name)
    waiting, seen = [sink.name], {sink.name}
    while waiting:
        node = by_name[waiting.pop()]
        yield node
        feeding = (*node.parents, *(user for store in node.stores for user in users[store]))
        for name in feeding:
            if name not in seen:
                seen.add(name)
                waiting.append(name)


# --- serdes


def with_serdes(topology: Topology, key: Serde[Any] | None, value: Serde[Any] | None) -> Topology:
    """Return a topology in which all topics and stores have serdes.

    ``key`` and ``value`` are the application's defaults for topics (else text and JSON); ``key``
    is also the default for internal keys (else plain data). Raises `TopologyError` if the keys of
    a join are written by different serdes.
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


def with_inner_serdes(node: nodes.Node, serdes: KeySerdes) -> nodes.Node:
    """Return a node with the serdes of internal keys; internal values have none."""
    if isinstance(node, nodes.Sink) and node.internal:
        return replace(node, key_serde=serdes.of_repartition(str(node.topic)))
    if isinstance(node, nodes.Source) and node.internal:
        keys = Keys(serdes.of_repartition(node.topics[0]))
        return replace(node, key_serde=keys.reader, value_serde=None)
    return serdes.filled(node)


def _filled(
    topology: Topology, node: nodes.Node, key: Serde[Any], value: Serde[Any] | None
) -> nodes.Node:
    if not isinstance(node, nodes.Source | nodes.Sink | nodes.GlobalTable):
        return node
    if isinstance(node, nodes.Sink) and node.key_serde is None:
        key = _windowed(topology, node, key)
    value = node.value_serde or value or Serdes.json()
    return replace(node, key_serde=node.key_serde or key, value_serde=value)


def _windowed(topology: Topology, sink: nodes.Sink, inner: Serde[Any]) -> Serde[Any]:
    """Return a serde that writes windowed keys as Kafka does, if the sink's table has windows."""
    window = next(_windows_above(topology, sink), None)
    if window is None:
        return inner
    serde = windowed(inner, window)

    def serialize(key: Any) -> bytes | None:
        return (serde if isinstance(key, Windowed) else inner).serialize(key)

    return Serde(f"{inner.name}, windowed or not", serialize, serde.deserialize)


def _windows_above(topology: Topology, node: nodes.Node) -> Iterator[Any]:
    """Yield the windows of the aggregations above a node, each branch from the nearest on."""
    for parent in map(topology.node, node.parents):
        if isinstance(parent, nodes.Aggregate) and parent.window is not None:
            yield parent.window
        yield from _windows_above(topology, parent)
