"""What an application leaves in its checkpoint beside Spark's own files, and reads from it.

The names of stores, and the stage and tasks they belong to, guard state against a program that
would not find it again. State is found by the *prefix* of its sub-topology, which is remembered
with the stores: numbers of sub-topologies change when a program is edited, names do not.
"""

import json
import os
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from thulawa.core.errors import ConfigurationError, StateError
from thulawa.runtime.groups import Assignment
from thulawa.runtime.planning import Part, Plan
from thulawa.spark.offsets import of_topics

__all__ = ["Admitted", "Checkpoint"]

_FORMAT = 1
_ELSEWHERE = re.compile(r"(?!file:)[a-z][a-z0-9+.-]+:/", re.IGNORECASE)
Offsets: TypeAlias = dict[str, dict[int, int]]
_ASK = "to run it all the same and lose that state, give allow_state_loss=True"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the state of a store is, and of what kind it is."""

    kind: str
    size: int
    stage: int
    tasks: int
    prefix: str
    changelog: bool = False


@dataclass(frozen=True, slots=True)
class Admitted:
    """Where an application's state is: the prefix of each sub-topology, and over how many slots.

    Spark keeps state by slot, so their number stays what it was, whatever tasks are added.
    """

    prefixes: Mapping[int, str]
    width: int


class Checkpoint:
    """The folder of one application."""

    def __init__(self, path: str) -> None:
        if _ELSEWHERE.match(path):
            raise ConfigurationError(
                f"the checkpoint {path} is on another file system: what is written there beside "
                "Spark's files is read without Spark; give a local folder, or a mounted one"
            )
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
    ) -> Admitted:
        """Refuse a program that would lose state; say where the state of another is."""
        written = self._written()
        if written.get("application_id", application_id) != application_id:
            raise StateError(
                f"the checkpoint {self.root} belongs to the application "
                f"{written['application_id']!r}; give {application_id!r} a folder of its own"
            )
        old = {name: _Place(**place) for name, place in written.get("stores", {}).items()}
        prefixes = {part.group.id: _prefix(part, old) for part in made.parts.values()}
        new = _places(made, prefixes, changelogs)
        generation = written.get("generation", 0)
        problem = _problem(old, new, written.get("stages", made.stages), made.stages)
        problem = problem or _resized(written.get("repartitions", {}), made)
        if problem is not None and not allow_state_loss:
            raise StateError(f"{problem}; {_ASK}")
        if problem is not None and written.get("stages") != made.stages:
            generation += 1  # another line of stages cannot go on with Spark's own files
            written = {}
        width = written.get("width", made.tasks)
        self._write(
            {
                "format": _FORMAT,
                "application_id": application_id,
                "generation": generation,
                "stages": made.stages,
                "width": width,
                "groups": {
                    name: part.tasks for part in made.parts.values() for name in part.group.stores
                },
                "repartitions": {name: one.partitions for name, one in made.repartitions.items()},
                "stores": {name: asdict(place) for name, place in new.items()},
                "restoring": written.get("restoring", False),
            }
        )
        return Admitted(prefixes, width)

    def check_belongs_to(self, application_id: str) -> None:
        """Refuse what is there and is not the checkpoint of this application."""
        if not self.root.exists():
            return
        if not self._file.is_file() or self._written().get("application_id") != application_id:
            raise StateError(
                f"{self.root} is not the checkpoint of {application_id!r}: nothing is removed; "
                f"name the folder that {application_id!r} has run with, or remove this one yourself"
            )

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
        offsets = of_topics(json.loads(line))
        return {
            topic: {int(number): end for number, end in ends.items()}
            for topic, ends in offsets.items()
        }

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


def _prefix(part: Part, old: Mapping[str, _Place]) -> str:
    for store in part.group.stores:
        if store in old:
            return old[store].prefix
    names = sorted(part.group.stores) or sorted(
        topic for source in part.group.sources for topic in source.topics
    )
    return names[0]


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
                prefixes[part.group.id],
                name in changelogs,
            )
    return places


def _problem(
    old: Mapping[str, _Place], new: Mapping[str, _Place], old_stages: int, stages: int
) -> str | None:
    """Say why state would be lost; None: it is not."""
    for name, place in old.items():
        if name not in new:
            return (
                f"the store {name!r} is in the checkpoint and not in the program: was it renamed? "
                "give stores names of their own with Materialized.as_"
            )
        if (difference := _difference(place, new[name])) is not None:
            return f"the store {name!r} {difference}"
    if old_stages != stages:
        return f"the program had {old_stages} stages and now has {stages}"
    return None


def _resized(before: Mapping[str, int], made: Plan) -> str | None:
    """Say which repartition before a store has another size: keys would get to other tasks."""
    for name, one in made.repartitions.items():
        has_state = made.parts[made.readers[name]].group.stores
        if has_state and before.get(name, one.partitions) != one.partitions:
            return f"the repartition {name!r} had {before[name]} partitions, now {one.partitions}"
    return None


def _difference(old: _Place, new: _Place) -> str | None:
    """Say why the state of a store would be lost; None: it is not."""
    if (old.kind, old.size) != (new.kind, new.size):
        return f"was a {old.kind} store of size {old.size}"
    if old.prefix != new.prefix or old.stage != new.stage:
        return "stood elsewhere in the program, behind other repartitions"
    if old.tasks != new.tasks:
        return f"was spread over {old.tasks} tasks, now {new.tasks}"
    if new.changelog and not old.changelog:
        return "had no changelog so far: what it holds could not be rebuilt from it"
    return None


def _numbered(folder: Path) -> list[int]:
    try:
        return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())
    except OSError:
        return []
