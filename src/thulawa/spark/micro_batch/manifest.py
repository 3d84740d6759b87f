"""Publish the manifest of an application to its broker, and find the previous run by it.

Offsets and state belong to the application, not to the folder it is started from. A start may use
another folder, run on another host or have lost its disk. So the broker also holds what a start
needs to know about earlier runs, in the compacted topic ``<application.id>-manifest``: host and
folder of the checkpoint, the id of Spark's query, the manifest of the checkpoint, and the ids of
the topics that are read. It is written before the first batch of a run. A start without a
checkpoint, while the broker holds data of the application, restores the checkpoint (`restore`) or
fails with the location of the previous one.
"""

import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from thulawa.brokers.port import read_to_end
from thulawa.errors import StateError, StateLoss
from thulawa.spark.micro_batch.brokers import StreamsBroker, sink_writer
from thulawa.spark.micro_batch.checkpoint import Checkpoint
from thulawa.spark.micro_batch.checkpoint_lock import CheckpointLock
from thulawa.spark.micro_batch.program import Program, offsets_topic
from thulawa.topology.compatibility import (
    FORMAT,
    ApplicationManifest,
    decode_manifest,
    encode_manifest,
)

_KEY = b"manifest"


@dataclass(frozen=True, slots=True)
class PublishedManifest:
    """The manifest of an application's last run, and where its checkpoint is.

    ``ids`` are the ids of topics when the application first read them: a topic that is deleted and
    created again has another.
    """

    query: str
    host: str
    path: str
    manifest: ApplicationManifest
    ids: Mapping[str, str] = field(default_factory=dict)


def manifest_topic(application_id: str) -> str:
    """Return the name of the topic that holds an application's manifest."""
    return f"{application_id}-manifest"


def read_manifest(topics: StreamsBroker, application_id: str) -> PublishedManifest | None:
    """Return the manifest of the application's last run; None if it has never run."""
    topic = manifest_topic(application_id)
    if not topics.broker.partitions(topic):
        return None
    values = [one.value for one in read_to_end(topics.broker, topic) if one.key == _KEY]
    if not values:
        return None
    try:
        record = json.loads(values[-1] or b"")
        content = {"format": FORMAT, **record.get("content", {})}
        query, host, path = (record[name] for name in ("query", "host", "path"))
        ids: Mapping[str, str] = record.get("ids", {})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StateError(
            f"the last record of {topic!r} is no manifest of this version of Thulawa: run the "
            "application with the version that wrote it, or discard its state with thulawa reset"
        ) from error
    manifest = decode_manifest(content, f"the topic {topic!r}")
    return PublishedManifest(query, host, path, manifest, ids)


def publish_manifest(
    topics: StreamsBroker, program: Program, checkpoint: Checkpoint, query: str
) -> None:
    """Write the manifest and the location of the application's checkpoint to its topic."""
    last = read_manifest(topics, program.application_id)
    known = {} if last is None else last.ids
    first = {name: known[name] for name in program.topics if name in known}
    record = {
        "query": query,
        "host": socket.gethostname(),
        "path": str(checkpoint.root),
        "content": {} if checkpoint.is_new else encode_manifest(checkpoint.manifest()),
        "ids": topics.broker.topic_ids(*program.topics) | first,
    }
    name = manifest_topic(program.application_id)
    topics.create(name, 1, compact=True)
    topics.put(name, _KEY, json.dumps(record).encode())


@dataclass(frozen=True, slots=True)
class PreviousRun:
    """A previous run of the application, whose checkpoint is not the one of this start."""

    application_id: str
    checkpoint: Path
    manifest: PublishedManifest | None
    trace: str = ""  # the data on the broker, if there is no manifest

    def error(self, why: str) -> StateLoss:
        """Return the error of a start that would begin again without permission."""
        known, former = f"run before: there are {self.trace}", "the checkpoint it had"
        if self.manifest is not None:
            known = f"one at {self.manifest.path} on {self.manifest.host}"
            former = f"checkpoint={self.manifest.path!r}"
        return StateLoss(
            f"{self.checkpoint} holds no checkpoint, but {self.application_id!r} has {known}; "
            f"{why}.\nStart it with {former}, or begin again with thulawa reset; "
            "allow_state_loss=True continues from its committed offsets with empty stores"
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
    now = topics.broker.topic_ids(*(name for name in names if name in before))
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
    broker, name = topics.broker, offsets_topic(application_id)
    if broker.partitions(name) and any(broker.end_offsets(name)[name].values()):
        return f"records in the topic {name!r}"
    for group in (application_id, sink_writer(application_id).group):
        if broker.committed(group).offsets:
            return f"committed offsets of the group {group!r}"
    return None


def _check_not_running(manifest: PublishedManifest, checkpoint: Checkpoint) -> None:
    """Raise `StateError` if the last run is still active in another process on this host."""
    there = Path(manifest.path)
    if manifest.host == socket.gethostname() and there != checkpoint.root and there.is_dir():
        lock = CheckpointLock(there)
        with suppress(OSError):  # of another user: not known
            lock.acquire()
        lock.release()
