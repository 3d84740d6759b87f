"""Check that an output topic exists and accepts the size of a record, before it is sent.

A record for a missing topic, or one above the topic's size limit, would fail in the sink at the end
of the micro-batch, and again at every rerun. Checked early, the production handler can decide.
Limits are cached in the worker while the application runs; a missing topic, for a second.
"""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from thulawa.brokers.embedded import Log
from thulawa.brokers.port import LARGEST_RECORD
from thulawa.errors import ProductionError

if TYPE_CHECKING:
    from thulawa.brokers.kafka.connection import Connection

__all__ = ["EmbeddedOutlets", "KafkaOutlets", "Outlets", "limit_of"]

_BATCH_OVERHEAD = 61 + 21  # most bytes of Kafka's batch of one record
_MISSING_SECONDS = 1.0

# by run and topic: the size limit, or the time until which the topic counts as missing
_limits: dict[tuple[str, str], int] = {}
_missing: dict[tuple[str, str], float] = {}


class Outlets(Protocol):
    """The size limits of the topics of a broker."""

    def limit(self, topic: str) -> int | None:
        """Return the most bytes of a record, None: any; raise LookupError if there is no topic."""


@dataclass(frozen=True, slots=True)
class EmbeddedOutlets:
    """The size limits of an embedded log."""

    address: str

    def limit(self, topic: str) -> int | None:
        """Return the most bytes of a record."""
        with Log(self.address) as log:
            if topic not in log.topics():
                raise LookupError(topic)
        return None


@dataclass(frozen=True, slots=True)
class KafkaOutlets:
    """The size limits of a Kafka cluster, except where the sink's policies decide."""

    connection: "Connection"
    may_be_missing: bool = False
    may_be_oversized: bool = False

    def limit(self, topic: str) -> int | None:
        """Return the most bytes of a record; None: any, or the sink's policy decides."""
        from thulawa.brokers.kafka.topics import Topics  # noqa: PLC0415 workers without Kafka stay light

        topics = Topics(self.connection)
        if not topics.partitions(topic):
            if self.may_be_missing:
                return None
            raise LookupError(topic)
        return None if self.may_be_oversized else topics.largest_record(topic) - _BATCH_OVERHEAD


def limit_of(outlets: Outlets | None, run: str, topic: str) -> int:
    """Return the most bytes of a record; raise `ProductionError` if the topic is missing.

    Records of all topics are packed as those of the embedded log, so its limit applies to all.
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
