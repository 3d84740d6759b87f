"""The broker to measure, and to test, on: that of THULAWA_KAFKA, or one that is started for it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka.admin import AdminClient

from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.topics import Topics, reachable
from thulawa.dev.kafka_broker import DevBroker

__all__ = ["connected", "given", "names", "swept"]


def given() -> Connection | None:
    """Connect to the broker of THULAWA_KAFKA, if it gives one."""
    if not (address := os.environ.get("THULAWA_KAFKA")):
        return None
    connection = Connection.of(address)
    reachable(connection)
    return connection


@contextmanager
def connected(run: str) -> Iterator[Connection]:
    """Give the broker for a block whose topics all have ``run`` in their names."""
    if (connection := given()) is None:
        with DevBroker(run, port=0) as broker:
            yield broker.connection
    else:
        with swept(connection, run):
            yield connection


@contextmanager
def swept(connection: Connection, run: str) -> Iterator[None]:
    """Delete the topics with ``run`` in their names at the end of a block."""
    try:
        yield
    finally:
        for topic in names(connection):
            if run in topic:
                Topics(connection).delete_topic(topic)


def names(connection: Connection) -> set[str]:
    """Name the topics there are, but for those of the broker's own."""
    found = AdminClient(connection.client()).list_topics(timeout=30).topics
    return {name for name in found if not name.startswith("__")}
