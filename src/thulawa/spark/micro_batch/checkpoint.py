"""The checkpoint folder of an application: its manifest beside the files of Spark's query."""

import dataclasses
import json
import logging
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from thulawa.core.types import Offsets
from thulawa.errors import ConfigurationError, StateError, StateLoss
from thulawa.runtime.partition_groups import Assignment
from thulawa.runtime.planning import checkpoint_names
from thulawa.spark.connectors.offsets import Notes, of_topics
from thulawa.spark.micro_batch.program import Program
from thulawa.topology.compatibility import (
    ApplicationManifest,
    ProgramLayout,
    StateMapping,
    SubTopologyLayout,
    check_compatibility,
    decode_manifest,
    encode_manifest,
)
from thulawa.topology.state_layout import source_topics, store_state

_REMOTE = re.compile(r"(?!file:)[a-z][a-z0-9+.-]+:/", re.IGNORECASE)
_log = logging.getLogger("thulawa.streams")


class Checkpoint:
    """The checkpoint folder of one application."""

    def __init__(self, path: str) -> None:
        if _REMOTE.match(path):
            raise ConfigurationError(
                f"the checkpoint {path} is on a remote file system, and its manifest is read "
                "without Spark; use a local folder, or a mounted one"
            )
        self.root = Path(path.removeprefix("file:")).absolute()  # Spark has its own working folder
        self._file = self.root / "application.json"
        self._adopted: ApplicationManifest | None = None

    @property
    def query_path(self) -> str:
        """The folder of Spark's query."""
        return str(self.root / f"query-{self.manifest().generation}")

    def manifest(self) -> ApplicationManifest:
        """Return the manifest; an empty one if there is no checkpoint."""
        if self._adopted is not None:
            return self._adopted
        content = self._content()
        return decode_manifest(content, str(self._file)) if content else ApplicationManifest()

    @property
    def is_new(self) -> bool:
        """Whether there is no manifest yet."""
        return self._adopted is None and not self._content()

    def adopt(self, manifest: ApplicationManifest) -> None:
        """Use the manifest of the application's last checkpoint, which is not in this folder.

        `accept` writes it. What an interrupted start has left here is ignored.
        """
        here = self.manifest()
        self._adopted = replace(
            manifest,
            starts={},
            generation=max(here.generation, manifest.generation),
            restoring=here.restoring,
        )

    def assignment(self) -> Assignment:
        """Return which partitions form a task with state, because state cannot move."""
        manifest = self.manifest()
        return Assignment(manifest.groups, manifest.repartitions, frozenset(manifest.durable))

    def internal_topics(self) -> set[str] | None:
        """Return the repartition topics of the previous program; None if there was none."""
        if self.is_new:
            return None
        manifest = self.manifest()
        if manifest.internal_topics is not None:
            return set(manifest.internal_topics)
        named = {f"{manifest.application_id}-{name}" for name in manifest.repartitions}
        return named & self.committed_offsets().keys()

    def check(self, program: Program) -> StateMapping:
        """Return the state that a program finds in this checkpoint, and what it would lose."""
        return check_compatibility(self.manifest(), _layout(program))

    def accept(
        self, program: Program, *, allow_state_loss: bool, starts: Offsets | None = None
    ) -> Program:
        """Write the manifest of a program that is to run; return it with where its state is.

        Spark partitions state by slot, so the number of slots never changes, whatever tasks are
        added, and a query that has timers keeps its time mode. A query without a committed batch
        begins at ``starts``. Raise `StateLoss` if the program would lose state.
        """
        old, plan, application_id = self.manifest(), program.plan, program.application_id
        if old.application_id not in ("", application_id):
            raise StateError(
                f"the checkpoint {self.root} belongs to the application {old.application_id!r}; "
                f"give {application_id!r} its own folder"
            )
        layout = _layout(program)
        mapping = check_compatibility(old, layout)
        for loss in mapping.losses:
            if not allow_state_loss:
                raise StateLoss(
                    f"{loss.why}; to run it and lose that state, set allow_state_loss=True"
                )
            _log.warning("%s loses state: %s", application_id, loss.why)
        prefixes, number = mapping.complete(layout, old.number)
        generation, begins = old.generation, starts or old.starts
        dropped = {**old.dropped, **mapping.dropped}
        if mapping.is_all_lost:
            read = self.committed_offsets() or begins
            begins = {topic: read[topic] for topic in read.keys() - plan.global_topics}
            generation += 1
            old, dropped = ApplicationManifest(), {}
        topics = set(plan.topics) - plan.repartitions.keys()
        former = set(old.former_topics)
        for topic in sorted(topics & former - self.committed_offsets().keys()):
            _log.warning(
                "%s read %r before, then not, and now again: from its beginning, because its "
                "offsets are no longer known",
                application_id,
                topic,
            )
        width = plan.tasks if old.width is None else old.width
        has_timers = program.has_timers or bool(old.has_timers)
        self._write(
            ApplicationManifest(
                application_id=application_id,
                generation=generation,
                number=number,
                stages=plan.stages,
                width=width,
                has_timers=has_timers,
                groups={
                    name: part.tasks
                    for part in plan.parts.values()
                    for name in checkpoint_names(part.group, part.stage)
                },
                repartitions=layout.repartitions,
                durable=[name for name, one in plan.repartitions.items() if one.durable],
                internal_topics=program.internal_topics,
                stores=layout.stores_at(prefixes),
                storeless=layout.storeless_at(prefixes),
                tables=layout.tables_at(prefixes),
                dropped=dropped,
                starts=begins,
                topics=sorted(topics),
                former_topics=sorted(former.union(old.topics) - topics),
                restoring=old.restoring,
            )
        )
        return dataclasses.replace(program, prefixes=prefixes, width=width, had_timers=has_timers)

    def check_belongs_to(self, application_id: str) -> None:
        """Raise `StateError` if the folder exists and is not the checkpoint of this application."""
        if not self.root.exists():
            return
        # of any format
        if self._file.is_file() and self._content().get("application_id") == application_id:
            return
        raise StateError(
            f"{self.root} is not the checkpoint of {application_id!r}, so nothing is removed; "
            f"name the folder that {application_id!r} has run with, or remove this one yourself"
        )

    # --- restoring from changelogs

    @property
    def query(self) -> str | None:
        """The id of Spark's query; None before its first start and while it is being restored."""
        if self.manifest().restoring:
            return None
        try:
            text = Path(self.query_path, "metadata").read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        return str(json.loads(text)["id"])

    def begin(self, query: str, *, restoring: bool) -> None:
        """Create the folder of a Spark query with this id."""
        if restoring:
            manifest = self.manifest()
            if manifest.restoring:  # an earlier restore was interrupted
                shutil.rmtree(self.query_path, ignore_errors=True)
            self._write(replace(manifest, generation=manifest.generation + 1, restoring=True))
        folder = Path(self.query_path)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "metadata").write_text(json.dumps({"id": query}), encoding="utf-8")

    def continue_from(
        self, starts: Offsets, ends: Offsets | None, unread: Sequence[Mapping[str, list[str]]]
    ) -> None:
        """Replace the offsets of the last batch; with ``ends``, add a batch that reads up to them.

        ``unread`` holds the partitions with unread records at ``starts`` and at ``ends``. The rest
        of what Spark has written about the last batch stays.
        """
        last = self.last_batch()
        path = Path(self.query_path) / "offsets" / str(last)
        version, about, _ = path.read_text(encoding="utf-8").splitlines()
        batches = {last: starts} if ends is None else {last: starts, last + 1: ends}
        for (number, offsets), more in zip(batches.items(), unread, strict=False):
            path.with_name(f".{number}.crc").unlink(missing_ok=True)
            named = {t: {str(n): at for n, at in some.items()} for t, some in offsets.items()}
            lines = version, about, json.dumps(Notes(more=more).beside(named))
            path.with_name(str(number)).write_text("\n".join(lines), encoding="utf-8")

    def starts(self) -> Offsets:
        """Return the offsets at which a query without a committed batch begins.

        Topics that are not named begin with their first record, and so do global tables.
        """
        if self.last_batch() >= 0:
            return {}
        return {topic: dict(offsets) for topic, offsets in self.manifest().starts.items()}

    def finish(self) -> None:
        """Mark the restore as complete."""
        self._write(replace(self.manifest(), restoring=False))

    # --- the logs of Spark's query

    def last_batch(self) -> int:
        """Return the number of the last committed batch; -1 if there is none."""
        return _last_number(Path(self.query_path) / "commits")

    def has_open_batch(self) -> bool:
        """Return whether a batch has begun and is not committed."""
        return _last_number(Path(self.query_path) / "offsets") > self.last_batch()

    def committed_offsets(self) -> Offsets:
        """Return the end offsets of the last committed batch."""
        return self.offsets_of(self.last_batch())

    def offsets_of(self, batch: int) -> Offsets:
        """Return the end offsets of a batch; nothing if Spark has deleted them."""
        return {
            topic: {int(number): offset for number, offset in partitions.items()}
            for topic, partitions in of_topics(self._end_offset(batch)).items()
        }

    def has_more(self) -> bool:
        """Return whether tasks may wait for records that the last batch has not read."""
        return bool(self.unread_after(self.last_batch()))

    def unread_after(self, batch: int) -> frozenset[tuple[str, int]]:
        """Return the topic-partitions that had more records than a batch reads."""
        more = Notes.of(self._end_offset(batch)).more
        return frozenset((topic, int(number)) for topic, some in more.items() for number in some)

    def _end_offset(self, batch: int) -> dict[str, Any]:
        """Return the end offset of the source from Spark's offset log."""
        path = Path(self.query_path) / "offsets" / str(batch)
        try:
            line: dict[str, Any] = json.loads(path.read_text(encoding="utf-8").splitlines()[2])
        except (OSError, IndexError):
            return {}
        return line

    # --- the manifest's file

    def _content(self) -> dict[str, Any]:
        try:
            content: dict[str, Any] = json.loads(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise StateError(f"{self._file} is damaged: restore it from a backup") from error
        return content

    def _write(self, manifest: ApplicationManifest) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        temporary = self._file.with_suffix(".new")
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(encode_manifest(manifest), file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._file)
        self._adopted = None


def _layout(program: Program) -> ProgramLayout:
    """Return the state layout that `check_compatibility` compares with a manifest."""
    plan = program.plan
    parts = plan.parts.values()
    behind = {name: plan.parts[plan.readers[name]].group.stores for name in plan.repartitions}
    return ProgramLayout(
        [
            SubTopologyLayout(
                part.group.id,
                part.group.stores,
                source_topics(part.group),
                part.tasks,
                [table.topic for table in plan.global_tables(part.group)],
            )
            for part in parts
        ],
        {
            name: store_state(
                plan.topology,
                name,
                stage=part.stage,
                tasks=len(part.tasks),
                changelog=name in program.changelogs,
            )
            for part in parts
            for name in part.group.stores
        },
        stages=plan.stages,
        has_timers=program.has_timers,
        repartitions={name: one.partitions for name, one in plan.repartitions.items()},
        store_behind={name: stores[0] for name, stores in behind.items() if stores},
    )


def _last_number(folder: Path) -> int:
    try:
        return max((int(path.name) for path in folder.iterdir() if path.name.isdigit()), default=-1)
    except OSError:
        return -1
