"""Counts of dropped records, from tasks to the driver.

Tasks report through a Spark accumulator when they end: the counts of a failed task are lost, and a
micro-batch that runs again counts again. A Python source has no accumulators, so the first stage
sends its counts in a row to the next stage, which reports them.
"""

import json
from collections import Counter

from pyspark import AccumulatorParam
from pyspark.sql import SparkSession

from thulawa.runtime.metrics import NodeMetrics, RecordCounts, node_metrics

__all__ = ["CountReport", "decode_counts", "encode_counts"]


class _CounterParam(AccumulatorParam[RecordCounts]):
    """Accumulator that adds counters."""

    def zero(self, value: RecordCounts) -> RecordCounts:  # noqa: ARG002 Spark's signature
        """Return an empty counter."""
        return Counter()

    def addInPlace(self, value1: RecordCounts, value2: RecordCounts) -> RecordCounts:  # noqa: N802 Spark's name
        """Add one counter to another."""
        value1.update(value2)
        return value1


class CountReport:
    """Accumulator of the drop counts of an application's tasks."""

    def __init__(self, spark: SparkSession) -> None:
        self._counts = spark.sparkContext.accumulator(Counter(), _CounterParam())

    def metrics(self) -> dict[str, NodeMetrics]:
        """Return the metrics of each node, over all tasks that have ended."""
        return node_metrics([self._counts.value])

    def add(self, counts: RecordCounts) -> None:
        """Add counts; called in a task."""
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
