"""Find the previous run of an application: compare its checkpoint with its published manifest.

Offsets and state belong to the application, not to the folder it is started from. A start without a
checkpoint, while the broker holds data of the application, restores the checkpoint (`restore`) or
fails with the location of the previous one.
"""

import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from thulawa.errors import (
    StateError,
    StateLoss,
)
from thulawa.spark.micro_batch.brokers import StreamsBroker
from thulawa.spark.micro_batch.checkpoint import Checkpoint
from thulawa.spark.micro_batch.checkpoint_lock import CheckpointLock
from thulawa.spark.micro_batch.manifest import PublishedManifest, read_manifest
from thulawa.spark.micro_batch.program import offsets_topic

__all__ = ["PreviousRun", "check_topic_ids", "find_previous_run", "last_checkpoint"]


@dataclass(frozen=True, slots=True)
class PreviousRun:
    """A previous run of the application, whose checkpoint is not the one of this start."""

    application_id: str
    checkpoint: Path
    manifest: PublishedManifest | None
    trace: str = ""  # the data on the broker, if there is no manifest

    def error(self, why: str) -> StateLoss:
        """Return the error of a start that would begin again without permission."""
        begin = (
            "begin again with thulawa reset; allow_state_loss=True continues from its committed "
            "offsets with empty stores"
        )
        if self.manifest is None:
            return StateLoss(
                f"{self.checkpoint} holds no checkpoint, but {self.application_id!r} has run "
                f"before: there are {self.trace}; {why}.\n"
                f"Start it with the checkpoint it had, or {begin}"
            )
        return StateLoss(
            f"{self.checkpoint} holds no checkpoint, but {self.application_id!r} has one at "
            f"{self.manifest.path} on {self.manifest.host}; {why}.\n"
            f"Start it with checkpoint={self.manifest.path!r}, or {begin}"
        )


def find_previous_run(
    application_id: str, topics: StreamsBroker, checkpoint: Checkpoint
) -> PreviousRun | None:
    """Return the previous run whose checkpoint is missing here; None if none is missing.

    Raise `StateError` if this checkpoint is not that of the last run, or if the last run is still
    active on this host.
    """
    manifest = read_manifest(topics, application_id)
    query = checkpoint.query
    if manifest is None:
        trace = None if query is not None else _trace(topics, application_id)
        return None if trace is None else PreviousRun(application_id, checkpoint.root, None, trace)
    if query is None:
        _check_not_running(manifest, checkpoint)
        return PreviousRun(application_id, checkpoint.root, manifest)
    if query != manifest.query:
        raise StateError(
            f"the checkpoint {checkpoint.root} is not the last one of {application_id!r}, which "
            f"has continued from {manifest.path} on {manifest.host} since.\n"
            f"Start it with that one, or remove {checkpoint.root} and start again: stores with "
            "changelogs are restored"
        )
    return None


def check_topic_ids(previous: PreviousRun, topics: StreamsBroker, names: tuple[str, ...]) -> None:
    """Raise `StateError` if a topic was created again since the previous run has read it.

    Its offsets would be applied to other records. With a checkpoint, the source checks this.
    """
    before = {} if previous.manifest is None else previous.manifest.ids
    now = topics.ids(tuple(name for name in names if name in before))
    for name, found in now.items():
        if found != before[name]:
            raise StateError(
                f"{previous.checkpoint} holds no checkpoint, and the topic {name!r} was deleted "
                f"and created again since {previous.application_id!r} has read it: its new records "
                "cannot be told from the old ones.\nBegin again with thulawa reset"
            )


def last_checkpoint(
    application_id: str, topics: StreamsBroker, checkpoint: Checkpoint
) -> Checkpoint:
    """Return this checkpoint or, if it does not exist, the application's last on this host."""
    manifest = read_manifest(topics, application_id)
    if checkpoint.root.exists() or manifest is None or manifest.host != socket.gethostname():
        return checkpoint
    return Checkpoint(manifest.path)


def _trace(topics: StreamsBroker, application_id: str) -> str | None:
    """Return a description of the data of an application without a manifest; None: no data."""
    name = offsets_topic(application_id)
    if topics.partitions((name,)) and any(topics.end_offsets((name,))[name].values()):
        return f"records in the topic {name!r}"
    return topics.trace(application_id)


def _check_not_running(manifest: PublishedManifest, checkpoint: Checkpoint) -> None:
    """Raise `StateError` if the last run is still active in another process on this host."""
    there = Path(manifest.path)
    if manifest.host == socket.gethostname() and there != checkpoint.root and there.is_dir():
        lock = CheckpointLock(there)
        with suppress(OSError):  # of another user: not known
            lock.acquire()
        lock.release()
