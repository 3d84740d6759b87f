"""The manifest of an application: what its broker knows about its checkpoint.

A checkpoint is a folder, and a folder can be left behind: by a start from another one, on another
host, or without its disk. So what a start needs to know about an earlier life is kept with the
application's topics as well, in the compacted topic ``<application.id>-manifest``: on which host
and in which folder the checkpoint is, the id of Spark's query there, how partitions and tasks were
assigned, and the ids of the topics that are read. It is written before the first batch of a life.
"""

import json
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from thulawa.core.errors import StateError
from thulawa.spark.micro_batch.brokers import Topics
from thulawa.spark.micro_batch.checkpoint import Checkpoint
from thulawa.spark.micro_batch.program import Program

__all__ = ["Manifest", "manifest_topic", "read_manifest", "write_manifest"]

_KEY = b"manifest"


@dataclass(frozen=True, slots=True)
class Manifest:
    """One life of an application: where its checkpoint is, and what is written there.

    ``content`` is that of ``application.json`` (`records`). ``ids`` are those of the topics
    when the application first read them: one that is deleted and created again has another.
    """

    query: str
    host: str
    path: str
    content: Mapping[str, Any] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)


def manifest_topic(application_id: str) -> str:
    """Return the name of the topic that holds an application's manifest."""
    return f"{application_id}-manifest"


def read_manifest(topics: Topics, application_id: str) -> Manifest | None:
    """Return the manifest of the application's last life; None where it has had none."""
    name = manifest_topic(application_id)
    if not topics.partitions((name,)):
        return None
    values = [value for key, value in topics.records(name) if key == _KEY]
    if not values:
        return None
    try:
        return Manifest(**json.loads(values[-1] or b""))
    except (ValueError, TypeError) as error:
        raise StateError(
            f"the last record of {name!r} is no manifest of this version of Thulawa: go on with "
            "the version that wrote it, or begin anew with thulawa reset"
        ) from error


def write_manifest(topics: Topics, program: Program, checkpoint: Checkpoint, query: str) -> None:
    """Write where the application's checkpoint is, and what is written there."""
    application_id = program.application_id
    last = read_manifest(topics, application_id)
    known = {} if last is None else last.ids
    first = {name: known[name] for name in program.topics if name in known}
    manifest = Manifest(
        query,
        socket.gethostname(),
        str(checkpoint.root),
        checkpoint.content(),
        topics.ids(program.topics) | first,
    )
    name = manifest_topic(application_id)
    topics.create(name, 1, compact=True)
    topics.put(name, _KEY, json.dumps(asdict(manifest)).encode())
