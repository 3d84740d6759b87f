"""Which life of an application a start goes on with: its checkpoint, compared with its manifest.

Positions and state belong to the application, not to the folder it is started from. A start that
finds no checkpoint, while the broker holds something of the application, goes on where it was
(`recovery`), or is refused with the place of the checkpoint that it had.
"""

import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from thulawa.core.errors import StateError, StateLoss
from thulawa.spark.micro_batch.brokers import Topics
from thulawa.spark.micro_batch.checkpoint import Checkpoint
from thulawa.spark.micro_batch.checkpoint_lock import CheckpointLock
from thulawa.spark.micro_batch.manifest import Manifest, read_manifest
from thulawa.spark.micro_batch.program import offsets_topic

__all__ = ["Former", "find_former", "last_checkpoint", "refuse_recreated_topics"]


@dataclass(frozen=True, slots=True)
class Former:
    """An earlier life of the application, whose checkpoint is not the one of this start."""

    application_id: str
    checkpoint: Path
    manifest: Manifest | None
    trace: str = ""  # what the broker holds where there is no manifest

    def refused(self, why: str) -> StateLoss:
        """Return the error of a start that would begin again without being told to."""
        begin = (
            "begin again with thulawa reset; allow_state_loss=True goes on from its committed "
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


def find_former(application_id: str, topics: Topics, checkpoint: Checkpoint) -> Former | None:
    """Return the earlier life whose checkpoint is missing here; None where there is none.

    Raise `StateError` where this checkpoint is not that of the last life, or where the last life
    still goes on elsewhere on this host.
    """
    manifest = read_manifest(topics, application_id)
    query = checkpoint.query
    if manifest is None:
        trace = None if query is not None else _trace(topics, application_id)
        return None if trace is None else Former(application_id, checkpoint.root, None, trace)
    if query is None:
        _refuse_running(manifest, checkpoint)
        return Former(application_id, checkpoint.root, manifest)
    if query != manifest.query:
        raise StateError(
            f"the checkpoint {checkpoint.root} is not the last one of {application_id!r}, which "
            f"has gone on from {manifest.path} on {manifest.host} since.\n"
            f"Start it with that one, or remove {checkpoint.root} and start again: what has "
            "changelogs is rebuilt"
        )
    return None


def refuse_recreated_topics(former: Former, topics: Topics, names: tuple[str, ...]) -> None:
    """Raise where a topic is not the one that the earlier life has read.

    Its positions would be applied to other records. A checkpoint knows that by itself.
    """
    before = {} if former.manifest is None else former.manifest.ids
    now = topics.ids(tuple(name for name in names if name in before))
    for name, found in now.items():
        if found != before[name]:
            raise StateError(
                f"{former.checkpoint} holds no checkpoint, and the topic {name!r} was deleted and "
                f"created again since {former.application_id!r} has read it: its new records "
                "cannot be told from the old ones.\nBegin again with thulawa reset"
            )


def last_checkpoint(application_id: str, topics: Topics, checkpoint: Checkpoint) -> Checkpoint:
    """Return this checkpoint, or, where it does not exist, the application's last on this host."""
    manifest = read_manifest(topics, application_id)
    if checkpoint.root.exists() or manifest is None or manifest.host != socket.gethostname():
        return checkpoint
    return Checkpoint(manifest.path)


def _trace(topics: Topics, application_id: str) -> str | None:
    """Return what the broker holds of an application that has no manifest."""
    name = offsets_topic(application_id)
    if topics.partitions((name,)) and any(topics.end_offsets((name,))[name].values()):
        return f"records in the topic {name!r}"
    return topics.trace(application_id)


def _refuse_running(manifest: Manifest, checkpoint: Checkpoint) -> None:
    """Refuse to go on with a life that another process on this host is living."""
    there = Path(manifest.path)
    if manifest.host == socket.gethostname() and there != checkpoint.root and there.is_dir():
        lock = CheckpointLock(there)
        with suppress(OSError):  # of another user: nothing can be said
            lock.acquire()
        lock.release()
