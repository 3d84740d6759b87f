"""What is seen of a running query from outside: how far behind it is, and what batches cost.

Looked at now and then by the thread that waits for the query's end. A listener of Spark's would be
told of each batch, at the price of dozens of calls between Python and Java each time.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from thulawa.core.types import Offsets
from thulawa.runtime.batch_size import Binding, FetchControl
from thulawa.spark.connectors.offsets import of_topics

__all__ = ["FetchStatistics", "Fetches", "records_between"]

_log = logging.getLogger("thulawa.streams")
Report = Mapping[str, Any]


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


class Fetches:
    """Lets the limit of the next batches follow from what the last ones took.

    ``set_limit`` tells whether it could be set.
    """

    def __init__(self, name: str, control: FetchControl, set_limit: Callable[[int], bool]) -> None:
        self._name = name
        self._control: FetchControl | None = control
        self._set_limit = set_limit
        self._seen: int | None = None
        self.statistics = FetchStatistics(control.limit, control.binding)

    def look(self, report: Report | None) -> None:
        """Look at Spark's last report; one that was seen before says nothing new."""
        control = self._control
        if control is None or report is None or report["batchId"] == self._seen:
            return
        self._seen = report["batchId"]
        records = _sum(records_between(report, "startOffset", "endOffset"))
        seconds = report["durationMs"].get("triggerExecution", 0) / 1_000
        more = _sum(records_between(report, "endOffset", "latestOffset")) > 0
        before, limit = self.statistics.limit, control.batch(records, seconds, more=more)
        self.statistics = now = FetchStatistics(
            limit, control.binding, records, seconds, control.fixed
        )
        if limit == before:
            return
        if not self._set_limit(limit):
            _log.warning("%s: this Spark does not let a batch's limit be changed", self._name)
            self._control = None
            return
        _log.info(
            "%s: %d records took %.2f s (%.2f s whatever they are); the next batch takes up to %d, "
            "%s binds", self._name, records, seconds, now.fixed_seconds, limit, now.binding,
        )  # fmt: skip


def records_between(report: Report, start: str, end: str) -> Offsets:
    """Count the records between two offsets in a report of Spark: a row may hold many."""
    found: Offsets = {}
    for source in report["sources"]:
        begun = source[start] or {}
        for topic, partitions in of_topics(source[end] or {}).items():
            found[topic] = {
                int(number): max(0, upto - begun.get(topic, {}).get(number, 0))
                for number, upto in partitions.items()
            }
    return found


def _sum(counts: Offsets) -> int:
    return sum(count for partitions in counts.values() for count in partitions.values())
