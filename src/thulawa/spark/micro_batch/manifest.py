"""Publish the manifest of an application to its broker.

A checkpoint is a folder, and a start may use another folder, run on another host or have lost its
disk. So the broker also holds what a start needs to know about earlier runs, in the compacted topic
``<application.id>-manifest``: host and folder of the checkpoint, the id of Spark's query, the
manifest of the checkpoint, and the ids of the topics that are read. It is written before the first
batch of a run.
"""

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from thulawa.errors import StateError
from thulawa.spark.micro_batch.brokers import StreamsBroker
from thulawa.spark.micro_batch.checkpoint import Checkpoint
from thulawa.spark.micro_batch.program import Program
from thulawa.topology.compatibility import (
    FORMAT,
    ApplicationManifest,
    decode_manifest,
    encode_manifest,
)

__all__ = ["PublishedManifest", "manifest_topic", "publish_manifest", "read_manifest"]

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
    if not topics.partitions((topic,)):
        return None
    values = [value for key, value in topics.records(topic) if key == _KEY]
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
    application_id = program.application_id
    last = read_manifest(topics, application_id)
    known = {} if last is None else last.ids
    first = {name: known[name] for name in program.topics if name in known}
    record = {
        "query": query,
        "host": socket.gethostname(),
        "path": str(checkpoint.root),
        "content": {} if checkpoint.is_new else encode_manifest(checkpoint.manifest()),
        "ids": topics.ids(program.topics) | first,
    }
    name = manifest_topic(application_id)
    topics.create(name, 1, compact=True)
    topics.put(name, _KEY, json.dumps(record).encode())
