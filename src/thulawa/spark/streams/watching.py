"""What is seen of a running query after each batch: how far behind it is, and what it costs."""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from thulawa.core.fetching import Binding, FetchControl
from thulawa.spark.log_source import of_topics
from thulawa.spark.streams.records import Offsets

__all__ = ["FetchStatistics", "Watcher"]

_log = logging.getLogger("thulawa.streams")


@dataclass(frozen=True, slots=True)
class FetchStatistics:
    """What the last batch took, how many records the next may take, and what binds that.

    ``fixed_seconds`` is what a batch takes whatever is in it, as far as is known.
    """

    limit: int
    binding: Binding
    records: int = 0
    seconds: float = 0.0
    fixed_seconds: float = 0.0


class Watcher(StreamingQueryListener):
    """Looks at the batches of one query.

    ``lag`` is how many records the topics hold that the last batch has not read. With a
    ``control`` the limit of the next batches follows from what the last ones took, through
    ``set_limit``, which tells whether it could be set.
    """

    def __init__(
        self, name: str, query: str, control: FetchControl | None, set_limit: Callable[[int], bool]
    ) -> None:
        self._name = name
        self._query = query
        self._control = control
        self._set_limit = set_limit
        self.lag: Offsets = {}
        self.fetching = None if control is None else FetchStatistics(control.limit, control.binding)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 Spark's names
        """Do nothing: no batch has ended."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Take note of a batch."""
        progress: Any = event.progress
        if str(progress.id) != self._query:
            return
        self.lag = _between(progress.sources, "endOffset", "latestOffset")
        taken = _between(progress.sources, "startOffset", "endOffset")
        seconds = progress.durationMs.get("triggerExecution", 0) / 1_000
        self.batch(_sum(taken), seconds)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Do nothing: what was seen stands."""

    def batch(self, records: int, seconds: float) -> None:
        """Let the control see a batch, and set the limit that it gives."""
        control, before = self._control, self.fetching
        if control is None or before is None:
            return
        limit = control.batch(records, seconds, more=_sum(self.lag) > 0)
        self.fetching = now = FetchStatistics(
            limit, control.binding, records, seconds, control.fixed
        )
        if limit == before.limit:
            return
        if not self._set_limit(limit):
            _log.warning("%s: this Spark does not let a batch's limit be changed", self._name)
            self._control = None
            return
        _log.info(
            "%s: %d records took %.2f s (%.2f s whatever they are); the next batch takes up to %d, "
            "%s binds", self._name, records, seconds, now.fixed_seconds, limit, now.binding,
        )  # fmt: skip


def _between(sources: list[Any], start: str, end: str) -> Offsets:
    """Count the records between two offsets of the sources: rows may hold many."""
    found: Offsets = {}
    for source in sources:
        begun = _offsets(getattr(source, start))
        for topic, partitions in _offsets(getattr(source, end)).items():
            found[topic] = {
                int(number): max(0, upto - begun.get(topic, {}).get(number, 0))
                for number, upto in partitions.items()
            }
    return found


def _offsets(text: str | None) -> dict[str, dict[str, int]]:
    return of_topics(json.loads(text) or {}) if text else {}


def _sum(counts: Offsets) -> int:
    return sum(count for partitions in counts.values() for count in partitions.values())
