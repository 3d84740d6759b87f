"""Adapt the batch size of a running query to Spark's progress reports.

The thread that waits for the query's end polls the reports. A Spark listener would see every
micro-batch, but costs dozens of calls between Python and Java each time.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from thulawa.runtime.batch_size import BatchSizeEstimator, Binding
from thulawa.spark.connectors.offsets import of_topics

_log = logging.getLogger("thulawa.streams")
Report = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BatchSizeStatistics:
    """The last micro-batch, the limit of the next one, and what determines the limit.

    ``fixed_seconds`` is the estimated fixed cost of a micro-batch.
    """

    limit: int
    binding: Binding
    records: int = 0
    seconds: float = 0.0
    fixed_seconds: float = 0.0


class BatchSizeController:
    """Sets the limit of the next micro-batches from the durations of earlier ones.

    ``set_limit`` returns whether the limit could be set.
    """

    def __init__(
        self, name: str, control: BatchSizeEstimator, set_limit: Callable[[int], bool]
    ) -> None:
        self._name = name
        self._control: BatchSizeEstimator | None = control
        self._set_limit = set_limit
        self._seen: int | None = None
        self.statistics = BatchSizeStatistics(control.limit, control.binding)

    def update(self, report: Report | None) -> None:
        """Process Spark's last report, unless it was processed before."""
        control = self._control
        if control is None or report is None or report["batchId"] == self._seen:
            return
        self._seen = report["batchId"]
        records = records_between(report, "startOffset", "endOffset")
        seconds = report["durationMs"].get("triggerExecution", 0) / 1_000
        more = records_between(report, "endOffset", "latestOffset") > 0
        before, limit = self.statistics.limit, control.batch(records, seconds, more=more)
        self.statistics = now = BatchSizeStatistics(
            limit, control.binding, records, seconds, control.fixed
        )
        if limit == before:
            return
        if not self._set_limit(limit):
            _log.warning("%s: this version of Spark does not let the limit change", self._name)
            self._control = None
            return
        _log.info(
            "%s: %d records took %.2f s (%.2f s fixed); the next batch takes up to %d, "
            "%s binds", self._name, records, seconds, now.fixed_seconds, limit, now.binding,
        )  # fmt: skip


def records_between(report: Report, start: str, end: str) -> int:
    """Return the number of records between two offsets of a report, over all partitions.

    Spark reports rows, and a packed row holds many records.
    """
    return sum(
        max(0, upto - (source[start] or {}).get(topic, {}).get(number, 0))
        for source in report["sources"]
        for topic, partitions in of_topics(source[end] or {}).items()
        for number, upto in partitions.items()
    )
