"""Counts of the records that nodes left out, from tasks to the driver.

Tasks report through an accumulator of Spark when they end: what a failed task counted is lost with
it, and a batch that runs again counts again. A source in Python has no accumulators, so the front
sends its counts on as a row, to the next stage, which reports them.
"""

import json
from collections import Counter

from pyspark import AccumulatorParam
from pyspark.sql import SparkSession

from thulawa.runtime.metrics import NodeMetrics, RecordCounts, node_metrics

__all__ = ["CountReport", "decode_counts", "encode_counts"]


class _Adding(AccumulatorParam[RecordCounts]):
    """Accumulator that adds counters."""

    def zero(self, value: RecordCounts) -> RecordCounts:  # noqa: ARG002 Spark's signature
        """Return an empty counter."""
        return Counter()

    def addInPlace(self, value1: RecordCounts, value2: RecordCounts) -> RecordCounts:  # noqa: N802 Spark's name
        """Add one counter to another."""
        value1.update(value2)
        return value1


class CountReport:
    """Collects the counts of all tasks of an application."""

    def __init__(self, spark: SparkSession) -> None:
        self._counts = spark.sparkContext.accumulator(Counter(), _Adding())

    def metrics(self) -> dict[str, NodeMetrics]:
        """Return the metrics of each node, of all tasks that have ended."""
        return node_metrics([self._counts.value])

    def add(self, counts: RecordCounts) -> None:
        """Report counts, in a task."""
        if counts:
            self._counts.add(counts)


def encode_counts(counts: RecordCounts) -> bytes:
    """Return counts as bytes.

    >>> decode_counts(encode_counts(Counter({("node", "late"): 2})))
    Counter({('node', 'late'): 2})
    """
    return json.dumps([[*of, count] for of, count in counts.items()]).encode()


def decode_counts(data: bytes) -> RecordCounts:
    """Return the counts that `encode_counts` wrote."""
    return Counter({(node, reason): count for node, reason, count in json.loads(data)})
