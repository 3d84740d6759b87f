"""Check whether a changed program finds its state again, and where.

State is found by the *prefix* of its sub-topology, which the manifest of the application records
with the names of its stores: numbers of sub-topologies change when a program is edited, names do
not. Each prefix has a number that is never reused, so no two sub-topologies share a prefix, and
state that was once lost is not found later.

`check_compatibility` is pure: it compares the manifest of what has run with the layout of what is
to run. `Topology.state_change`, ``thulawa validate`` and `Streams` all use it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from thulawa.errors import StateError

FORMAT = 3
"""The version of the manifest's format. 3: stores hold keys by their identities."""


class StoreState(msgspec.Struct, frozen=True):
    """Where the state of a store is, and its form."""

    kind: str
    size: int
    stage: int
    tasks: int
    prefix: str = ""  # of its sub-topology; empty: it has no state yet
    changelog: bool = False
    fed: str = ""  # what feeds a store with a generated name (`topology.state_layout`)
    leads: Sequence[str] = ()  # the topics that are written from such a store
    keys: str = ""  # the name of the serde of its keys


class ApplicationManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What an application records in its checkpoint about its state and topics.

    Fields have defaults, so that a manifest of this format that was written before a field existed
    is still read.
    """

    format: int = FORMAT
    application_id: str = ""
    generation: int = 0  # number of the folder of Spark's query
    number: int = 0  # of the next new prefix
    stages: int | None = None
    width: int | None = None  # number of slots: Spark's state is partitioned by slot
    has_timers: bool | None = None
    groups: Mapping[str, Sequence[Mapping[str, Sequence[int]]]] = {}  # `runtime.groups.Assignment`
    repartitions: Mapping[str, int] = {}  # partitions by topic
    durable: Sequence[str] = ()  # repartitions that must be topics
    internal_topics: Sequence[str] | None = msgspec.field(name="inner_topics", default=None)
    stores: Mapping[str, StoreState] = {}
    storeless: Mapping[str, str] = {}  # prefixes of sub-topologies without stores, by topic
    tables: Mapping[str, Sequence[str]] = {}  # prefixes with a global table, by its topic
    dropped: Mapping[str, str] = {}  # prefixes of stores that the program no longer has
    starts: Mapping[str, Mapping[int, int]] = {}  # offsets of a query without a committed batch
    topics: Sequence[str] = ()
    former_topics: Sequence[str] = ()
    restoring: bool = False


def decode_manifest(content: Mapping[str, Any], source: str) -> ApplicationManifest:
    """Return the manifest that JSON holds; raise `StateError` for another format or no manifest."""
    if content.get("format") != FORMAT:
        raise StateError(
            f"{source} was written by another version of Thulawa: run the application with that "
            "version, or discard its state with thulawa reset"
        )
    try:
        return msgspec.convert(content, ApplicationManifest, str_keys=True)
    except msgspec.ValidationError as error:
        raise StateError(f"{source} is damaged ({error}): restore it from a backup") from error


def encode_manifest(manifest: ApplicationManifest) -> dict[str, Any]:
    """Return a manifest as JSON."""
    content: dict[str, Any] = msgspec.to_builtins(manifest, str_keys=True)
    return content


@dataclass(frozen=True, slots=True)
class SubTopologyLayout:
    """A sub-topology of a program that is to run."""

    id: int
    stores: Sequence[str]
    topics: Sequence[str]  # that it reads, sorted
    tasks: Sequence[Mapping[str, Sequence[int]]] = ()  # partitions of each task by topic
    tables: Sequence[str] = ()  # topics of the global tables that it reads

    @property
    def names(self) -> list[str]:
        """What identifies it: its stores or, without any, its topics."""
        return sorted(self.stores) or list(self.topics)


@dataclass(frozen=True, slots=True)
class ProgramLayout:
    """The stores of a program that is to run, and where they are."""

    subtopologies: Sequence[SubTopologyLayout]
    stores: Mapping[str, StoreState]  # without prefixes
    stages: int = 1
    has_timers: bool = False
    repartitions: Mapping[str, int] = field(default_factory=dict)
    store_behind: Mapping[str, str] = field(default_factory=dict)  # of a repartition, if it has one

    def stores_at(self, prefixes: Mapping[int, str]) -> dict[str, StoreState]:
        """Return the stores with the prefixes of their sub-topologies."""
        return {
            name: msgspec.structs.replace(self.stores[name], prefix=prefixes.get(one.id, ""))
            for one in self.subtopologies
            for name in one.stores
            if name in self.stores
        }

    def storeless_at(self, prefixes: Mapping[int, str]) -> dict[str, str]:
        """Return the prefixes of sub-topologies without stores, by topic."""
        without = (one for one in self.subtopologies if not one.stores)
        return {topic: prefixes[one.id] for one in without for topic in one.topics}

    def tables_at(self, prefixes: Mapping[int, str]) -> dict[str, list[str]]:
        """Return the prefixes under which each global table is stored, by its topic."""
        found: dict[str, list[str]] = {}
        for one in self.subtopologies:
            for topic in one.tables:
                found.setdefault(topic, []).append(prefixes.get(one.id, ""))
        return found


@dataclass(frozen=True, slots=True)
class Loss:
    """Why the state of a store would be lost; ``store`` is None if all state would be."""

    store: str | None
    why: str


@dataclass(frozen=True, slots=True)
class StateMapping:
    """The state that a program finds, by sub-topology, and what it would lose.

    ``dropped`` are the prefixes of stores that the program no longer has.
    """

    prefixes: Mapping[int, str]
    losses: Sequence[Loss]
    dropped: Mapping[str, str]

    @property
    def is_all_lost(self) -> bool:
        """Whether Spark cannot continue the query, so that all state is lost."""
        return any(loss.store is None for loss in self.losses)

    def complete(self, layout: ProgramLayout, number: int) -> tuple[dict[int, str], int]:
        """Return the prefixes of all sub-topologies, and the number after the last new one."""
        prefixes = dict(self.prefixes)
        for one in layout.subtopologies:
            if one.id not in prefixes:
                prefixes[one.id] = f"{one.names[0] if one.names else ''}:{number}"
                number += 1
        return prefixes, number


@dataclass(frozen=True, slots=True)
class StateChange:
    """The effect of a change of topology on stores, by name."""

    kept: tuple[str, ...]
    lost: tuple[str, ...]
    added: tuple[str, ...]

    @property
    def is_safe(self) -> bool:
        """Whether all state survives."""
        return not self.lost


def check_compatibility(old: ApplicationManifest, new: ProgramLayout) -> StateMapping:
    """Return where a program finds the state that a manifest describes, and what it would lose."""
    prefixes = _inherited(old, new)
    stores = new.stores_at(prefixes)
    losses = [*_lost_stores(old, stores), *_resized_repartitions(old, new)]
    lost = {loss.store for loss in losses}
    losses += _new_partitions(old, new)  # of some keys: the others keep their state
    for one in new.subtopologies:
        if lost.intersection(one.stores):
            prefixes.pop(one.id, None)
    losses += _lost_query(old, new, prefixes)
    dropped = {name: state.prefix for name, state in old.stores.items() if name not in stores}
    return StateMapping(prefixes, losses, dropped)


def _inherited(old: ApplicationManifest, new: ProgramLayout) -> dict[int, str]:
    """Return the prefixes of sub-topologies that continue with state, each for one of them.

    A sub-topology that had no store is identified by its topics.
    """
    found: dict[int, str] = {}
    by_store = {name: state.prefix for name, state in old.stores.items()}
    by_stores = [(one.id, by_store, one.stores) for one in new.subtopologies]
    by_topics = [(one.id, old.storeless, one.topics) for one in new.subtopologies]
    for subtopology, known, names in [*by_stores, *by_topics]:
        prefix = next((known[name] for name in names if name in known), None)
        if prefix is not None and subtopology not in found and prefix not in found.values():
            found[subtopology] = prefix
    return found


def _lost_stores(old: ApplicationManifest, new: Mapping[str, StoreState]) -> list[Loss]:
    """Return the stores that would lose their state."""
    losses = []
    for name, state in old.stores.items():
        difference: str | None = (
            "is in the checkpoint and not in the program: was it renamed? "
            "give stores names of their own with Materialized.as_"
        )
        if name in new:
            difference = _difference(state, new[name])
        if difference is not None:
            losses.append(Loss(name, f"the store {name!r} {difference}"))
    for name, state in new.items():
        if name not in old.stores and old.dropped.get(name) == state.prefix:
            why = (
                f"the store {name!r} was removed from the program and put back, while other stores "
                "of its sub-topology have changed: give it another name"
            )
            losses.append(Loss(name, why))
    return losses


def _resized_repartitions(old: ApplicationManifest, new: ProgramLayout) -> list[Loss]:
    """Return the repartitions before a store whose size has changed: keys would change tasks."""
    return [
        Loss(
            store, f"the repartition {name!r} had {before} partitions, now {new.repartitions[name]}"
        )
        for name, store in new.store_behind.items()
        if (before := old.repartitions.get(name)) not in (None, new.repartitions[name])
    ]


def _new_partitions(old: ApplicationManifest, new: ProgramLayout) -> list[Loss]:
    """Return a loss for each partition that is new to tasks with stores.

    The keys that are sent to it now were sent to other partitions before, and have state there.
    """
    losses = []
    for one in new.subtopologies:
        store = next((store for store in one.stores if store in old.groups), None)
        if store is None:
            continue
        had: dict[str, set[int]] = {}
        for task in old.groups[store]:
            for topic, numbers in task.items():
                had.setdefault(topic, set()).update(numbers)
        for topic, before in sorted(had.items()):
            now = {number for task in one.tasks for number in task.get(topic, ())}
            for number in sorted(now - before):
                why = (
                    f"partition {number} of {topic!r} is new: keys that are sent there now have "
                    f"their state in the store {store!r} of another task, and would begin with "
                    "none; to keep their state, read the topic with a new application_id"
                )
                losses.append(Loss(store, why))
    return losses


def _lost_query(
    old: ApplicationManifest, new: ProgramLayout, prefixes: Mapping[int, str]
) -> list[Loss]:
    """Return why Spark cannot continue the query, so that all state would be lost."""
    if old.stages not in (None, new.stages):
        return [Loss(None, f"the program had {old.stages} stages and now has {new.stages}")]
    if new.stages and new.has_timers and old.has_timers is False:
        why = (
            "the program had no timers and now has some (process, or max_task_idle), which Spark "
            "cannot add to an existing query"
        )
        return [Loss(None, why)]
    for topic, here in new.tables_at(prefixes).items():
        if topic in old.topics and not set(here) <= set(old.tables.get(topic, ())):
            why = (
                f"the topic {topic!r} has been read, and its global table would be empty in the "
                "sub-topology that reads it for the first time"
            )
            return [Loss(None, why)]
    return []


def _difference(old: StoreState, new: StoreState) -> str | None:  # noqa: PLR0911 one per reason
    """Return why the state of a store would be lost; None if it is kept."""
    if (old.kind, old.size) != (new.kind, new.size):
        return f"was {_form(old)} and is now {_form(new)}"
    if old.keys != new.keys:
        return (
            f"had its keys written as {old.keys} and now as {new.keys}: they would not be found; "
            "keep the key_serde"
        )
    if old.fed != new.fed or (old.leads and not set(old.leads) & set(new.leads)):
        return (
            f"was that of {_origin(old)} and is now that of {_origin(new)}: generated names move "
            "when a program is edited; name your stores with Materialized.as_"
        )
    if old.prefix != new.prefix or old.stage != new.stage:
        return "moved to a different sub-topology or stage"
    if old.tasks != new.tasks:
        return f"was spread over {old.tasks} tasks, now {new.tasks}"
    if new.changelog and not old.changelog:
        return "had no changelog so far: its state could not be restored from a new one"
    return None


def _form(state: StoreState) -> str:
    size = f" of {state.size} ms" if state.size else ""
    return f"a {state.kind} store{size}"


def _origin(state: StoreState) -> str:
    leads = f", which leads to {', '.join(state.leads)}" if state.leads else ""
    return f"({state.fed}{leads})"
