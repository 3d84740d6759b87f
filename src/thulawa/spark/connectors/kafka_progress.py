"""Commit the offsets of a query to a Kafka consumer group, where standard tools see its lag."""

import json
import logging
from typing import Any

from confluent_kafka.admin import AdminClient
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.groups import commit_offsets
from thulawa.core.types import Offsets
from thulawa.errors import BrokerError
from thulawa.spark.connectors.offsets import KAFKA, Notes, by_partition

_log = logging.getLogger("thulawa.kafka")


def progress_offsets(progress: Any) -> Offsets:
    """Return the end offsets of a query's Kafka sources from its progress report."""
    found: Offsets = {}
    for source in progress.sources:
        end = json.loads(source.endOffset)
        if "Kafka" not in source.description and Notes.of(end).broker != KAFKA:
            continue  # neither Spark's own reader of Kafka nor ours
        for (topic, partition), offset in by_partition(end).items():
            found.setdefault(topic, {})[partition] = offset
    return found


class GroupCommits(StreamingQueryListener):
    """Listener that commits the offsets of one query to a consumer group after each batch.

    Add it with ``spark.streams.addListener(GroupCommits(connection, "geo", query.id))``. A commit
    that fails is logged and not retried, because the next batch commits newer offsets.
    """

    def __init__(self, connection: Connection, group: str, query: str | None = None) -> None:
        self._connection = connection
        self._group = group
        self._query = query
        self._client = AdminClient(connection.client())

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: there are no offsets yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Commit the end offsets of the batch."""
        if self._query not in (None, str(event.progress.id)):
            return
        try:
            offsets = progress_offsets(event.progress)
            commit_offsets(self._connection, self._group, offsets, client=self._client)
        except BrokerError as error:
            _log.warning("could not commit the offsets of group %s: %s", self._group, error)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing: committed offsets stay."""
