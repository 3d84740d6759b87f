"""Whether an edited program finds its state again, and where.

The names of stores, and the stage and tasks they belong to, guard state against a program that
would not find it again. State is found by the *prefix* of its sub-topology, which is remembered
with the stores: numbers of sub-topologies change when a program is edited, names do not. Each
prefix has a number that is never given again, so that no two sub-topologies share one, and what
was once lost is not found later.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thulawa.runtime.planning import Plan, StagedSubTopology
from thulawa.topology.key_serdes import written_as
from thulawa.topology.origins import fed_by, is_generated, leads_to
from thulawa.topology.topology import Topology

__all__ = ["Found", "Loss", "Place", "names_of", "places", "tables", "weigh"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the state of a store is, and of what kind it is.

    ``fed`` and ``leads`` tell what a store with a generated name is for (`topology.origins`),
    ``keys`` the name of the serde that its keys are written by.
    """

    kind: str
    size: int
    stage: int
    tasks: int
    prefix: str
    changelog: bool = False
    fed: str = ""
    leads: Sequence[str] = ()
    keys: str = ""


@dataclass(frozen=True, slots=True)
class Loss:
    """Why state would be lost, and of which store; None: of all."""

    store: str | None
    why: str


@dataclass(frozen=True, slots=True)
class Found:
    """What a program finds of its state, by the prefixes of its sub-topologies, and what it loses.

    ``dropped`` are the stores it no longer has, with the prefixes under which they still are.
    """

    prefixes: Mapping[int, str]
    losses: Sequence[Loss]
    dropped: Mapping[str, str]

    @property
    def all_is_lost(self) -> bool:
        """Whether Spark cannot go on with its own files."""
        return any(loss.store is None for loss in self.losses)

    def numbered(self, made: Plan, number: int) -> tuple[dict[int, str], int]:
        """Give all prefixes, new ones from a number on, and the number after them."""
        prefixes = dict(self.prefixes)
        for part in made.parts.values():
            if part.group.id not in prefixes:
                prefixes[part.group.id] = f"{names_of(part)[0]}:{number}"
                number += 1
        return prefixes, number


def weigh(
    written: Mapping[str, Any], made: Plan, *, changelogs: Collection[str], has_timers: bool
) -> Found:
    """Compare a program with what the one before it has written down."""
    old = {name: Place(**place) for name, place in written.get("stores", {}).items()}
    prefixes = _inherited(made, old, written.get("storeless", {}))
    new = places(made, prefixes, changelogs)
    losses = _losses(old, new, written.get("dropped", {}))
    losses += _resized(written.get("repartitions", {}), made)
    lost = {loss.store for loss in losses}
    losses += _grown(written.get("groups", {}), made)  # of some keys: the others keep their state
    for part in made.parts.values():
        if lost.intersection(part.group.stores):
            prefixes.pop(part.group.id, None)
    losses += _remade(written, made, prefixes, has_timers=has_timers)
    dropped = {name: place.prefix for name, place in old.items() if name not in new}
    return Found(prefixes, losses, dropped)


def tables(made: Plan, prefixes: Mapping[int, str]) -> dict[str, list[str]]:
    """Tell under which prefixes the global table of each topic is kept."""
    found: dict[str, list[str]] = {}
    for part in made.parts.values():
        for table in made.global_tables(part.group):
            found.setdefault(table.topic, []).append(prefixes.get(part.group.id, ""))
    return found


def names_of(part: StagedSubTopology) -> list[str]:
    """Give what a part is known by: its stores, or its topics where it has none."""
    topics = (topic for source in part.group.sources for topic in source.topics)
    return sorted(part.group.stores) or sorted(topics)


def _inherited(
    made: Plan, old: Mapping[str, Place], storeless: Mapping[str, str]
) -> dict[int, str]:
    """Give the prefixes of the parts that go on with state, each to one part alone.

    A part that has had no store is known by its topics.
    """
    found: dict[int, str] = {}
    by_store = {name: place.prefix for name, place in old.items()}
    for part in made.parts.values():
        _inherit(found, part, by_store, part.group.stores)
    for part in made.parts.values():
        topics = sorted(topic for source in part.group.sources for topic in source.topics)
        _inherit(found, part, storeless, topics)
    return found


def _inherit(
    found: dict[int, str], part: StagedSubTopology, known: Mapping[str, str], names: Iterable[str]
) -> None:
    prefix = next((known[name] for name in names if name in known), None)
    if prefix is not None and part.group.id not in found and prefix not in found.values():
        found[part.group.id] = prefix


def places(
    made: Plan, prefixes: Mapping[int, str], changelogs: Collection[str]
) -> dict[str, Place]:
    """Tell where the state of each store is; without a prefix: it begins empty."""
    places = {}
    for part in made.parts.values():
        for name in part.group.stores:
            spec = made.topology.stores[name]
            places[name] = Place(
                spec.kind,
                spec.size,
                part.stage,
                len(part.tasks),
                prefixes.get(part.group.id, ""),
                name in changelogs,
                *_origin(made.topology, name),
                keys="" if spec.key_serde is None else written_as(spec.key_serde),
            )
    return places


def _origin(topology: Topology, store: str) -> tuple[str, Sequence[str]]:
    """Tell what a store is for, where its name does not."""
    if not is_generated(store):
        return "", ()
    return fed_by(topology, store), leads_to(topology, store)


def _losses(
    old: Mapping[str, Place], new: Mapping[str, Place], dropped: Mapping[str, str]
) -> list[Loss]:
    """Say which stores would lose their state, and why."""
    losses = []
    for name, place in old.items():
        if name not in new:
            why = (
                f"the store {name!r} is in the checkpoint and not in the program: was it renamed? "
                "give stores names of their own with Materialized.as_"
            )
            losses.append(Loss(name, why))
        elif (difference := _difference(place, new[name])) is not None:
            losses.append(Loss(name, f"the store {name!r} {difference}"))
    for name, place in new.items():
        if name not in old and dropped.get(name) == place.prefix:
            why = (
                f"the store {name!r} was taken out of the program and put back, and there are "
                "others beside it that have gone on: give it another name"
            )
            losses.append(Loss(name, why))
    return losses


def _resized(before: Mapping[str, int], made: Plan) -> list[Loss]:
    """Say which repartition before a store has another size: keys would get to other tasks."""
    losses = []
    for name, one in made.repartitions.items():
        stores = made.parts[made.readers[name]].group.stores
        if stores and before.get(name, one.partitions) != one.partitions:
            why = f"the repartition {name!r} had {before[name]} partitions, now {one.partitions}"
            losses.append(Loss(stores[0], why))
    return losses


def _grown(before: Mapping[str, Sequence[Mapping[str, Any]]], made: Plan) -> list[Loss]:
    """Return a loss for each partition that is new to tasks with stores.

    The keys that are sent to it now were sent to others before, and have their state there.
    """
    losses = []
    for part in made.parts.values():
        store = next((store for store in part.group.stores if store in before), None)
        if store is None:
            continue
        had: dict[str, set[int]] = {}
        for task in before[store]:
            for topic, numbers in task.items():
                had.setdefault(topic, set()).update(numbers)
        for topic, numbers in sorted(had.items()):
            now = {number for task in part.tasks for number in task.get(topic, ())}
            for number in sorted(now - numbers):
                why = (
                    f"partition {number} of {topic!r} is new: keys that are sent there now have "
                    f"their state in the store {store!r} of another task, and would begin with "
                    "none; to keep them together, read the topic with a new application_id"
                )
                losses.append(Loss(store, why))
    return losses


def _remade(
    written: Mapping[str, Any], made: Plan, prefixes: Mapping[int, str], *, has_timers: bool
) -> list[Loss]:
    """Say why Spark cannot go on with its own files, and all state would be lost."""
    before = written.get("stages", made.stages)
    if before != made.stages:
        return [Loss(None, f"the program had {before} stages and now has {made.stages}")]
    if made.stages and has_timers and not written.get("has_timers", True):
        why = (
            "the program had no timers and now has some (process, or max_task_idle), which Spark "
            "cannot give to a query that was begun without"
        )
        return [Loss(None, why)]
    kept = written.get("tables", {})
    for topic, here in tables(made, prefixes).items():
        if topic in written.get("topics", ()) and not set(here) <= set(kept.get(topic, ())):
            why = (
                f"the topic {topic!r} has been read, and its global table would be empty where the "
                "program looks into it for the first time"
            )
            return [Loss(None, why)]
    return []


def _difference(old: Place, new: Place) -> str | None:
    """Say why the state of a store would be lost; None: it is not."""
    if (old.kind, old.size, old.keys) != (new.kind, new.size, new.keys):
        return _other_form(old, new)
    if old.fed != new.fed or (old.leads and not set(old.leads) & set(new.leads)):
        return (
            f"was that of {_shown(old)} and is now that of {_shown(new)}: generated names move "
            "when a program is edited; name your stores with Materialized.as_"
        )
    if old.prefix != new.prefix or old.stage != new.stage:
        return "stood elsewhere in the program, beside other stores or behind other repartitions"
    if old.tasks != new.tasks:
        return f"was spread over {old.tasks} tasks, now {new.tasks}"
    if new.changelog and not old.changelog:
        return "had no changelog so far: what it holds could not be rebuilt from it"
    return None


def _other_form(old: Place, new: Place) -> str:
    if (old.kind, old.size) != (new.kind, new.size):
        return f"was {_kind(old)} and is now {_kind(new)}"
    return (
        f"had its keys written as {old.keys} and now as {new.keys}: they would not be found; "
        "keep the key_serde"
    )


def _kind(place: Place) -> str:
    size = f" of {place.size} ms" if place.size else ""
    return f"a {place.kind} store{size}"


def _shown(place: Place) -> str:
    leads = f", which leads to {', '.join(place.leads)}" if place.leads else ""
    return f"({place.fed}{leads})"
