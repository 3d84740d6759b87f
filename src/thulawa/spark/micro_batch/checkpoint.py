"""What an application leaves in its checkpoint beside Spark's own files, and reads from it."""

import json
import logging
import os
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from thulawa.core.errors import ConfigurationError, StateError, StateLoss
from thulawa.core.types import Offsets
from thulawa.runtime.groups import Assignment
from thulawa.runtime.planning import Plan, remembered_by
from thulawa.spark.connectors.offsets import Notes, of_topics
from thulawa.spark.micro_batch.compatibility import names_of, places, tables, weigh

__all__ = ["Admitted", "Checkpoint"]

_ELSEWHERE = re.compile(r"(?!file:)[a-z][a-z0-9+.-]+:/", re.IGNORECASE)
_FORMAT = 3  # 3: stores hold keys under their identities
_log = logging.getLogger("thulawa.streams")
_ASK = "to run it all the same and lose that state, give allow_state_loss=True"


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
        if _ELSEWHERE.match(path):
            raise ConfigurationError(
                f"the checkpoint {path} is on another file system: what is written there beside "
                "Spark's files is read without Spark; give a local folder, or a mounted one"
            )
        self.root = Path(path.removeprefix("file:")).absolute()  # Spark may stand elsewhere
        self._file = self.root / "application.json"
        self._adopted: Mapping[str, Any] = {}

    @property
    def query_path(self) -> str:
        """The folder of Spark's query."""
        return str(self.root / f"query-{self._written().get('generation', 0)}")

    def adopt(self, content: Mapping[str, Any]) -> None:
        """Go by what the application's last checkpoint held, which is not here any more.

        `admit` writes it down. What a start that was cut off has left here does not count.
        """
        here = self._content()
        self._adopted = {
            "format": _FORMAT,
            **content,
            "starts": {},
            "generation": max(here.get("generation", 0), content.get("generation", 0)),
            "restoring": here.get("restoring", False),
        }

    def content(self) -> dict[str, Any]:
        """Return what is written down beside Spark's files."""
        return self._written()

    def assignment(self) -> Assignment:
        """Give which partitions make a task where there is state: it cannot move."""
        written = self._written()
        return Assignment(
            written.get("groups", {}),
            written.get("repartitions", {}),
            frozenset(written.get("durable", ())),
        )

    def inner_topics(self) -> set[str] | None:
        """Return the topics of repartitions as the last program had them; None: there was none."""
        written = self._written()
        if not written:
            return None
        if "inner_topics" in written:
            return set(written["inner_topics"])
        inner = {f"{written['application_id']}-{name}" for name in written["repartitions"]}
        return inner & self.committed_offsets().keys()

    def has_open_batch(self) -> bool:
        """Return whether a batch was begun and has not been committed."""
        begun = max(_numbered(Path(self.query_path) / "offsets"), default=-1)
        return begun > self.last_batch()

    def admit(
        self,
        application_id: str,
        made: Plan,
        *,
        allow_state_loss: bool,
        changelogs: Collection[str] = (),
        has_timers: bool = False,
        starts: Offsets | None = None,
    ) -> Admitted:
        """Refuse a program that would lose state; say where the state of another is.

        A query that has no checkpoint yet begins at ``starts``, unless it is known better.
        """
        written = self._written()
        if written.get("application_id", application_id) != application_id:
            raise StateError(
                f"the checkpoint {self.root} belongs to the application "
                f"{written['application_id']!r}; give {application_id!r} a folder of its own"
            )
        found = weigh(written, made, changelogs=changelogs, has_timers=has_timers)
        for loss in found.losses:
            if not allow_state_loss:
                raise StateLoss(f"{loss.why}; {_ASK}")
            _log.warning("%s loses state: %s", application_id, loss.why)
        prefixes, number = found.numbered(made, written.get("number", 0))
        generation = written.get("generation", 0)
        starts = starts or written.get("starts", {})
        dropped: dict[str, str] = written.get("dropped", {}) | found.dropped
        if found.all_is_lost:
            read = self.committed_offsets() or starts
            starts = {topic: read[topic] for topic in read.keys() - made.global_topics}
            generation += 1
            written, dropped = {}, {}
        topics = set(made.topics) - made.repartitions.keys()
        former = set(written.get("former_topics", ()))
        for topic in sorted(topics & former - self.committed_offsets().keys()):
            _log.warning(
                "%s read %r before, then not, and now again: from its beginning, for how far it "
                "was is no longer known",
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
                    name: part.tasks
                    for part in made.parts.values()
                    for name in remembered_by(part.group, part.stage)
                },
                "repartitions": {name: one.partitions for name, one in made.repartitions.items()},
                "durable": [name for name, one in made.repartitions.items() if one.durable],
                "inner_topics": [
                    f"{application_id}-{name}"
                    for name, one in made.repartitions.items()
                    if one.is_topic
                ],
                "stores": {
                    name: asdict(place)
                    for name, place in places(made, prefixes, changelogs).items()
                },
                "storeless": {
                    topic: prefixes[part.group.id]
                    for part in made.parts.values()
                    for topic in (() if part.group.stores else names_of(part))
                },
                "tables": tables(made, prefixes),
                "dropped": dropped,
                "starts": starts,
                "topics": sorted(topics),
                "former_topics": sorted(former.union(written.get("topics", ())) - topics),
                "restoring": written.get("restoring", False),
            }
        )
        return Admitted(prefixes, width, has_timers)

    def check_belongs_to(self, application_id: str) -> None:
        """Refuse what is there and is not the checkpoint of this application."""
        if not self.root.exists():
            return
        # whichever version has written it
        if self._file.is_file() and self._content().get("application_id") == application_id:
            return
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

    def go_on_from(
        self, starts: Offsets, ends: Offsets | None, waits: Sequence[Mapping[str, list[str]]]
    ) -> None:
        """Have the query go on from other offsets; up to ``ends`` first, where they are given.

        ``waits``: the partitions that tasks may wait for at the start, and after the first batch.
        What Spark has written about its last batch stays, but for the offsets.
        """
        last = self.last_batch()
        path = Path(self.query_path) / "offsets" / str(last)
        version, about, _ = path.read_text(encoding="utf-8").splitlines()
        batches = {last: starts} if ends is None else {last: starts, last + 1: ends}
        for (number, offsets), more in zip(batches.items(), waits, strict=False):
            path.with_name(f".{number}.crc").unlink(missing_ok=True)
            noted = Notes(more=more).beside(_as_json(offsets))
            lines = version, about, json.dumps(noted)
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

    @property
    def batch_at_hand(self) -> bool:
        """Whether a batch has begun and not committed."""
        begun = max(_numbered(Path(self.query_path) / "offsets"), default=-1)
        return begun > self.last_batch()

    def committed_offsets(self) -> Offsets:
        """Give how far the last committed batch has read."""
        return self.offsets_of(self.last_batch())

    def offsets_of(self, batch: int) -> dict[str, dict[int, int]]:
        """Give how far a batch has read; nothing if that is no longer known."""
        return _offsets(of_topics(self._line_of(batch)))

    def has_more(self) -> bool:
        """Return whether tasks may wait for records that the last batch has not read."""
        return bool(self.more_than(self.last_batch()))

    def more_than(self, batch: int) -> frozenset[tuple[str, int]]:
        """Return the topic-partitions of which the broker had more than a batch reads."""
        more = Notes.of(self._line_of(batch)).more
        return frozenset((topic, int(number)) for topic, some in more.items() for number in some)

    def _line_of(self, batch: int) -> dict[str, Any]:
        """Return the end offset of a batch's source, as it is in Spark's offset log."""
        path = Path(self.query_path) / "offsets" / str(batch)
        try:
            line: dict[str, Any] = json.loads(path.read_text(encoding="utf-8").splitlines()[2])
        except (OSError, IndexError):
            return {}
        return line

    def _content(self) -> dict[str, Any]:
        try:
            content: dict[str, Any] = json.loads(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise StateError(f"{self._file} is damaged: put it back from a backup") from error
        return content

    def _written(self) -> dict[str, Any]:
        written = dict(self._adopted) or self._content()
        if written and written.get("format") != _FORMAT:
            raise StateError(
                f"{self._file} was written by another version of Thulawa: go on with that one, or "
                f"remove {self.root} to begin anew"
            )
        return written

    def _write(self, content: Mapping[str, Any]) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        beside = self._file.with_suffix(".new")
        with beside.open("w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._file)
        self._adopted = {}


def _offsets(written: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {
        topic: {int(number): offset for number, offset in partitions.items()}
        for topic, partitions in written.items()
    }


def _as_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    return {topic: {str(n): at for n, at in places.items()} for topic, places in offsets.items()}


def _numbered(folder: Path) -> list[int]:
    try:
        return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())
    except OSError:
        return []
