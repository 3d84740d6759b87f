"""Publish the manifest of an application to its broker.

A checkpoint is a folder, and a start may use another folder, run on another host or have lost its
disk. So the broker also holds what a start needs to know about earlier runs, in the compacted topic
``<application.id>-manifest``: host and folder of the checkpoint, the id of Spark's query, and the
manifest of the checkpoint. It is written before the first batch of a run.
"""

import json
import socket
from dataclasses import dataclass

from thulawa.core.errors import StateError
from thulawa.spark.micro_batch.brokers import Topics
from thulawa.spark.micro_batch.checkpoint import Checkpoint
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
    """The manifest of an application's last run, and where its checkpoint is."""

    query: str
    host: str
    path: str
    manifest: ApplicationManifest


def manifest_topic(application_id: str) -> str:
    """Return the name of the topic that holds an application's manifest."""
    return f"{application_id}-manifest"


def read_manifest(topics: Topics, application_id: str) -> PublishedManifest | None:
    """Return the manifest of the application's last run; None if it has never run."""
    name = manifest_topic(application_id)
    if not topics.partitions((name,)):
        return None
    values = [value for key, value in topics.records(name) if key == _KEY]
    if not values:
        return None
    try:
        record = json.loads(values[-1] or b"")
        content = {"format": FORMAT, **record.get("content", {})}
        query, host, path = (record[field] for field in ("query", "host", "path"))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StateError(
            f"the last record of {name!r} is no manifest of this version of Thulawa: run the "
            "application with the version that wrote it, or discard its state with thulawa reset"
        ) from error
    return PublishedManifest(query, host, path, decode_manifest(content, f"the topic {name!r}"))


def publish_manifest(
    topics: Topics, application_id: str, checkpoint: Checkpoint, query: str
) -> None:
    """Write the manifest and the location of the application's checkpoint to its topic."""
    record = {
        "query": query,
        "host": socket.gethostname(),
        "path": str(checkpoint.root),
        "content": {} if checkpoint.is_new else encode_manifest(checkpoint.manifest()),
    }
    name = manifest_topic(application_id)
    topics.create(name, 1, compact=True)
    topics.put(name, _KEY, json.dumps(record).encode())
