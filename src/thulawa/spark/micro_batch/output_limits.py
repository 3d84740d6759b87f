"""What the topics of outputs take: asked before a record is sent, so that a handler can answer.

A record for a topic that is not there, or that is larger than its topic takes, would fail in the
sink, at the end of the batch, and again whenever the batch runs again. Answers are kept in the
worker for as long as the application runs; that a topic is missing, for a second.
"""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from thulawa.brokers.embedded import Log
from thulawa.brokers.embedded.records import LARGEST_RECORD
from thulawa.core.errors import ProductionError

if TYPE_CHECKING:
    from thulawa.brokers.kafka.connection import Connection

__all__ = ["EmbeddedOutlets", "KafkaOutlets", "Outlets", "limit_of"]

_BATCH_OVERHEAD = 61 + 21  # of Kafka's batch of one record, at most
_MISSING_SECONDS = 1.0

# by run and topic: the limit, or until when the topic counts as missing
_limits: dict[tuple[str, str], int] = {}
_missing: dict[tuple[str, str], float] = {}


class Outlets(Protocol):
    """The topics that records can be sent to."""

    def limit(self, topic: str) -> int | None:
        """Return the most bytes of a record; None: any. Raise LookupError: no such topic."""


@dataclass(frozen=True, slots=True)
class EmbeddedOutlets:
    """The topics of an embedded log."""

    address: str

    def limit(self, topic: str) -> int | None:
        """Return the most bytes of a record."""
        with Log(self.address) as log:
            if topic not in log.topics():
                raise LookupError(topic)
        return None


@dataclass(frozen=True, slots=True)
class KafkaOutlets:
    """The topics of a Kafka cluster, but for what the sink's own policies answer."""

    connection: "Connection"
    may_be_missing: bool = False
    may_be_oversized: bool = False

    def limit(self, topic: str) -> int | None:
        """Return the most bytes of a record; None: any, or the sink's policies decide."""
        from thulawa.brokers.kafka.topics import Topics  # noqa: PLC0415 workers without Kafka stay light

        topics = Topics(self.connection)
        if topics.partitions(topic)[topic] is None:
            if self.may_be_missing:
                return None
            raise LookupError(topic)
        return None if self.may_be_oversized else topics.largest_record(topic) - _BATCH_OVERHEAD


def limit_of(outlets: Outlets | None, run: str, topic: str) -> int:
    """Return the most bytes of a record of a topic; raise `ProductionError` if there is none.

    Records of all topics are packed as those of the embedded log, so that its limit holds for all.
    """
    if outlets is None:
        return LARGEST_RECORD
    place = run, topic
    if place not in _limits:
        if _missing.get(place, 0.0) > time.monotonic():
            raise _no_topic(topic)
        for other in [one for one in _limits if one[0] != run]:
            del _limits[other]
        try:
            limit = outlets.limit(topic)
            _limits[place] = LARGEST_RECORD if limit is None else min(limit, LARGEST_RECORD)
        except LookupError:
            _missing[place] = time.monotonic() + _MISSING_SECONDS
            raise _no_topic(topic) from None
    return _limits[place]


def _no_topic(topic: str) -> ProductionError:
    return ProductionError(f"there is no topic {topic!r}: create it")
