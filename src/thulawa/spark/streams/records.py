"""What an application leaves in its checkpoint beside Spark's own files, and reads from it.

The names of stores, and the stage and tasks they belong to, guard state against a program that
would not find it again. State is found by the *prefix* of its sub-topology, which is remembered
with the stores: numbers of sub-topologies change when a program is edited, names do not. Each
prefix has a number that is never given again, so that no two sub-topologies share one, and what
was once lost is not found later.
"""

import json
import logging
import os
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from thulawa.core.errors import StateError
from thulawa.runtime.groups import Assignment
from thulawa.runtime.planning import Part, Plan
from thulawa.spark.offsets import of_topics
from thulawa.topology.origins import fed_by, is_generated, leads_to
from thulawa.topology.topology import Topology

__all__ = ["Admitted", "Checkpoint"]

_FORMAT = 2
_log = logging.getLogger("thulawa.streams")
Offsets: TypeAlias = dict[str, dict[int, int]]
_ASK = "to run it all the same and lose that state, give allow_state_loss=True"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the state of a store is, and of what kind it is.

    ``fed`` and ``leads`` tell what a store with a generated name is for (`topology.origins`).
    """

    kind: str
    size: int
    stage: int
    tasks: int
    prefix: str
    changelog: bool = False
    fed: str = ""
    leads: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Admitted:
    """Where an application's state is: the prefix of each sub-topology, and over how many slots.

    Spark keeps state by slot, so their number stays what it was, whatever tasks are added. A query
    that has timers has them for good.
    """

    prefixes: Mapping[int, str]
    width: int
    has_timers: bool = False


class Checkpoint:
    """The folder of one application."""

    def __init__(self, path: str) -> None:
        self.root = Path(path.removeprefix("file:")).absolute()  # Spark may stand elsewhere
        self._file = self.root / "application.json"

    @property
    def query_path(self) -> str:
        """The folder of Spark's query."""
        return str(self.root / f"query-{self._written().get('generation', 0)}")

    def assignment(self) -> Assignment:
        """Give which partitions make a task where there is state: it cannot move."""
        written = self._written()
        return Assignment(written.get("groups", {}), written.get("repartitions", {}))

    def admit(
        self,
        application_id: str,
        made: Plan,
        *,
        allow_state_loss: bool,
        changelogs: Collection[str] = (),
        has_timers: bool = False,
    ) -> Admitted:
        """Refuse a program that would lose state; say where the state of another is."""
        written = self._written()
        if written.get("application_id", application_id) != application_id:
            raise StateError(
                f"the checkpoint {self.root} belongs to the application "
                f"{written['application_id']!r}; give {application_id!r} a folder of its own"
            )
        old = {name: _Place(**place) for name, place in written.get("stores", {}).items()}
        generation, number = written.get("generation", 0), written.get("number", 0)
        dropped: dict[str, str] = written.get("dropped", {})
        prefixes = _inherited(made, old, written.get("storeless", {}))
        losses = _losses(old, _places(made, prefixes, changelogs), dropped)
        losses += _resized(written.get("repartitions", {}), made)
        remade = _remade(written, made.stages, has_timers=has_timers)
        if remade is not None:
            losses.append(remade)
        for loss in losses:
            if not allow_state_loss:
                raise StateError(f"{loss.why}; {_ASK}")
            _log.warning("%s loses state: %s", application_id, loss.why)
        lost = {loss.store for loss in losses}
        for part in made.parts.values():
            if part.group.id not in prefixes or lost.intersection(part.group.stores):
                prefixes[part.group.id] = f"{_names(part)[0]}:{number}"
                number += 1
        new = _places(made, prefixes, changelogs)
        dropped = dropped | {name: old[name].prefix for name in old.keys() - new.keys()}
        starts = written.get("starts", {})
        if remade is not None:
            read = self.committed_offsets() or starts
            starts = {topic: read[topic] for topic in read.keys() - made.global_topics}
            generation += 1
            written, dropped = {}, {}
        topics = set(made.topics) - made.repartitions.keys()
        known = {*written.get("topics", ()), *written.get("former_topics", ())}
        for topic in sorted(topics & set(written.get("former_topics", ()))):
            if topic not in self.committed_offsets():
                _log.warning(
                    "%s read %r before, then not, and now again: from its beginning, for how far "
                    "it was is no longer known",
                    application_id,
                    topic,
                )
        width = written.get("width", made.tasks)
        has_timers = has_timers or written.get("has_timers", False)
        self._write(
            {
                "format": _FORMAT,
                "application_id": application_id,
                "generation": generation,
                "number": number,
                "stages": made.stages,
                "width": width,
                "has_timers": has_timers,
                "groups": {
                    name: part.tasks for part in made.parts.values() for name in part.group.stores
                },
                "repartitions": {name: one.partitions for name, one in made.repartitions.items()},
                "stores": {name: asdict(place) for name, place in new.items()},
                "storeless": {
                    topic: prefixes[part.group.id]
                    for part in made.parts.values()
                    for topic in (() if part.group.stores else _names(part))
                },
                "dropped": dropped,
                "starts": starts,
                "topics": sorted(topics),
                "former_topics": sorted(known - topics),
                "restoring": written.get("restoring", False),
            }
        )
        return Admitted(prefixes, width, has_timers)

    # --- another life, rebuilt from changelogs

    @property
    def query(self) -> str | None:
        """The id of Spark's query; None: it has never been started, or its making was cut off."""
        if self._written().get("restoring"):
            return None
        try:
            text = Path(self.query_path, "metadata").read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        return str(json.loads(text)["id"])

    def begin(self, query: str, *, restoring: bool) -> None:
        """Give Spark's query a folder of its own, and its id."""
        written = self._written()
        if restoring:
            if written.get("restoring"):  # cut off: it is of no use
                shutil.rmtree(self.query_path, ignore_errors=True)
            generation = written.get("generation", 0) + 1
            self._write(written | {"generation": generation, "restoring": True})
        folder = Path(self.query_path)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "metadata").write_text(json.dumps({"id": query}), encoding="utf-8")

    def go_on_from(self, starts: Offsets, ends: Offsets | None) -> None:
        """Have the query go on from other offsets; up to ``ends`` first, where they are given.

        What Spark has written about its last batch stays, but for the offsets.
        """
        last = self.last_batch()
        path = Path(self.query_path) / "offsets" / str(last)
        version, about, _ = path.read_text(encoding="utf-8").splitlines()
        batches = {last: starts} if ends is None else {last: starts, last + 1: ends}
        for number, offsets in batches.items():
            path.with_name(f".{number}.crc").unlink(missing_ok=True)
            lines = version, about, json.dumps(offsets)
            path.with_name(str(number)).write_text("\n".join(lines), encoding="utf-8")

    def starts(self) -> Offsets:
        """Give where a query begins that has committed nothing: where one before it had come to.

        What is not named begins with its first record, so do global tables.
        """
        if self.last_batch() >= 0:
            return {}
        return _offsets(self._written().get("starts", {}))

    def finish(self) -> None:
        """Let what was rebuilt count."""
        self._write(self._written() | {"restoring": False})

    def prefix_of(self, store: str) -> str:
        """Give the prefix under which the state of a store is kept."""
        prefix: str = self._written()["stores"][store]["prefix"]
        return prefix

    def last_batch(self) -> int:
        """Give the number of the last committed batch; -1: there is none."""
        return max(_numbered(Path(self.query_path) / "commits"), default=-1)

    def committed_offsets(self) -> Offsets:
        """Give how far the last committed batch has read."""
        return self.offsets_of(self.last_batch())

    def offsets_of(self, batch: int) -> dict[str, dict[int, int]]:
        """Give how far a batch has read; nothing if that is no longer known."""
        path = Path(self.query_path) / "offsets" / str(batch)
        try:
            line = path.read_text(encoding="utf-8").splitlines()[2]
        except (OSError, IndexError):
            return {}
        return _offsets(of_topics(json.loads(line)))

    def _written(self) -> dict[str, Any]:
        try:
            written: dict[str, Any] = json.loads(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise StateError(f"{self._file} is damaged: put it back from a backup") from error
        if written.get("format") != _FORMAT:
            raise StateError(f"{self._file} was written by another version of Thulawa")
        return written

    def _write(self, content: Mapping[str, Any]) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        beside = self._file.with_suffix(".new")
        with beside.open("w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._file)


@dataclass(frozen=True, slots=True)
class _Loss:
    """Why state would be lost, and of which store; None: of all."""

    store: str | None
    why: str


def _names(part: Part) -> list[str]:
    """Give what a part is known by: its stores, or its topics where it has none."""
    topics = (topic for source in part.group.sources for topic in source.topics)
    return sorted(part.group.stores) or sorted(topics)


def _inherited(
    made: Plan, old: Mapping[str, _Place], storeless: Mapping[str, str]
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
    found: dict[int, str], part: Part, known: Mapping[str, str], names: Iterable[str]
) -> None:
    prefix = next((known[name] for name in names if name in known), None)
    if prefix is not None and part.group.id not in found and prefix not in found.values():
        found[part.group.id] = prefix


def _places(
    made: Plan, prefixes: Mapping[int, str], changelogs: Collection[str]
) -> dict[str, _Place]:
    places = {}
    for part in made.parts.values():
        for name in part.group.stores:
            spec = made.topology.stores[name]
            places[name] = _Place(
                spec.kind,
                spec.size,
                part.stage,
                len(part.tasks),
                prefixes.get(part.group.id, ""),
                name in changelogs,
                *_origin(made.topology, name),
            )
    return places


def _origin(topology: Topology, store: str) -> tuple[str, Sequence[str]]:
    """Tell what a store is for, where its name does not."""
    if not is_generated(store):
        return "", ()
    return fed_by(topology, store), leads_to(topology, store)


def _losses(
    old: Mapping[str, _Place], new: Mapping[str, _Place], dropped: Mapping[str, str]
) -> list[_Loss]:
    """Say which stores would lose their state, and why."""
    losses = []
    for name, place in old.items():
        if name not in new:
            why = (
                f"the store {name!r} is in the checkpoint and not in the program: was it renamed? "
                "give stores names of their own with Materialized.as_"
            )
            losses.append(_Loss(name, why))
        elif (difference := _difference(place, new[name])) is not None:
            losses.append(_Loss(name, f"the store {name!r} {difference}"))
    for name, place in new.items():
        if name not in old and dropped.get(name) == place.prefix:
            why = (
                f"the store {name!r} was taken out of the program and put back, and there are "
                "others beside it that have gone on: give it another name"
            )
            losses.append(_Loss(name, why))
    return losses


def _resized(before: Mapping[str, int], made: Plan) -> list[_Loss]:
    """Say which repartition before a store has another size: keys would get to other tasks."""
    losses = []
    for name, one in made.repartitions.items():
        stores = made.parts[made.readers[name]].group.stores
        if stores and before.get(name, one.partitions) != one.partitions:
            why = f"the repartition {name!r} had {before[name]} partitions, now {one.partitions}"
            losses.append(_Loss(stores[0], why))
    return losses


def _remade(written: Mapping[str, Any], stages: int, *, has_timers: bool) -> _Loss | None:
    """Say why Spark cannot go on with its own files, and all state would be lost."""
    before = written.get("stages", stages)
    if before != stages:
        return _Loss(None, f"the program had {before} stages and now has {stages}")
    if stages and has_timers and not written.get("has_timers", True):
        why = (
            "the program had no timers and now has some (process, or max_task_idle), which Spark "
            "cannot give to a query that was begun without"
        )
        return _Loss(None, why)
    return None


def _difference(old: _Place, new: _Place) -> str | None:
    """Say why the state of a store would be lost; None: it is not."""
    if (old.kind, old.size) != (new.kind, new.size):
        return f"was a {old.kind} store of size {old.size}"
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


def _shown(place: _Place) -> str:
    leads = f", which leads to {', '.join(place.leads)}" if place.leads else ""
    return f"({place.fed}{leads})"


def _offsets(written: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {
        topic: {int(number): offset for number, offset in partitions.items()}
        for topic, partitions in written.items()
    }


def _numbered(folder: Path) -> list[int]:
    try:
        return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())
    except OSError:
        return []
