"""Check that an output topic exists and accepts the size of a record, before it is sent.

A record for a missing topic, or one above the topic's size limit, would fail in the sink at the end
of the micro-batch, and again at every rerun. Checked early, the production handler can decide.
Limits are cached in the worker while the application runs; a missing topic, for a second.
"""

import time
from dataclasses import dataclass

from thulawa.brokers.port import LARGEST_RECORD, Broker
from thulawa.errors import ProductionError, UnknownTopic

_MISSING_SECONDS = 1.0

# by run and topic: the size limit, or the time until which the topic counts as missing
_limits: dict[tuple[str, str], int] = {}
_missing: dict[tuple[str, str], float] = {}


@dataclass(frozen=True, slots=True)
class OutputLimits:
    """The size limits of the topics of a broker, except where the policies of its sink decide."""

    broker: Broker
    may_be_missing: bool = False
    may_be_oversized: bool = False

    def limit(self, topic: str) -> int | None:
        """Return the most bytes of a record, None: any; raise `UnknownTopic` if it is missing."""
        try:
            size = self.broker.max_record_size(topic)
        except UnknownTopic:
            if self.may_be_missing:
                return None
            raise
        return None if self.may_be_oversized else size


def limit_of(limits: OutputLimits | None, run: str, topic: str) -> int:
    """Return the most bytes of a record; raise `ProductionError` if the topic is missing.

    Records of all topics are packed as those of the embedded log, so its limit applies to all.
    """
    if limits is None:
        return LARGEST_RECORD
    name = run, topic
    if name not in _limits:
        if _missing.get(name, 0.0) > time.monotonic():
            raise _no_topic(topic)
        for other in [one for one in _limits if one[0] != run]:
            del _limits[other]
        try:
            limit = limits.limit(topic)
        except LookupError:
            _missing[name] = time.monotonic() + _MISSING_SECONDS
            raise _no_topic(topic) from None
        _limits[name] = LARGEST_RECORD if limit is None else min(limit, LARGEST_RECORD)
    return _limits[name]


def _no_topic(topic: str) -> ProductionError:
    return ProductionError(f"there is no topic {topic!r}: create it")
