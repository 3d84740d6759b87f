"""Send a program to Python workers as pickled bytes, and its statistics back to the driver.

Spark sends the pickled function with every task of every micro-batch. Loading a large program takes
long, so it is pickled separately and each worker caches it. This module imports none that run
programs: Spark starts extra processes only to ask for a state schema, which must start fast.

Tasks report through accumulators when they end: the statistics of a failed task are lost, and a
micro-batch that runs again counts again. A Python source has no accumulators, so the first stage
sends its counts in a row to the next stage, which reports them.
"""

import json
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from pyspark import AccumulatorParam, cloudpickle
from pyspark.sql import SparkSession

from thulawa.errors import TopologyError
from thulawa.runtime.metrics import NodeMetrics, RecordCounts, node_metrics

if TYPE_CHECKING:
    from thulawa.engine.lane_sums import LaneSums
    from thulawa.spark.map_by_key.lane_report import LaneReport
    from thulawa.spark.micro_batch.program import Program
    from thulawa.topology.topology import Topology

EMPTY: Mapping[str, "LaneReport"] = MappingProxyType({})
_MAX_CACHED = 16  # programs in a worker

_opened: dict[str, "Program"] = {}


def check_picklable(topology: "Topology") -> None:
    """Raise `TopologyError`, with the line of the node, for a program that cannot be pickled."""
    for node in topology.nodes.values():
        try:
            cloudpickle.dumps(node)  # type: ignore[no-untyped-call]
        except Exception as error:
            raise TopologyError(
                f"{node.name!r} cannot be sent to Spark's workers: its function refers to what "
                f"cannot be pickled ({error}); create it inside the function, or in init",
                where=node.where or None,
            ) from error


class _CounterParam(AccumulatorParam[RecordCounts]):
    def zero(self, value: RecordCounts) -> RecordCounts:  # noqa: ARG002 Spark's signature
        return Counter()

    def addInPlace(self, value1: RecordCounts, value2: RecordCounts) -> RecordCounts:  # noqa: N802 Spark's name
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


class ShippedProgram:
    """A pickled program with its accumulators, which must be unpickled anew for each task."""

    def __init__(
        self,
        program: "Program",
        reports: Mapping[str, "LaneReport"] = EMPTY,
        counts: CountReport | None = None,
    ) -> None:
        self._run = program.run
        self._reports = dict(reports)
        self._counts = counts
        self._data: bytes = cloudpickle.dumps(program)  # type: ignore[no-untyped-call]

    def open(self) -> "Program":
        """Return the program, the same object each time in one process."""
        program = _opened.get(self._run)
        if program is None:
            program = cast("Program", cloudpickle.loads(self._data))
            while len(_opened) >= _MAX_CACHED:
                del _opened[next(iter(_opened))]
            _opened[self._run] = program
        return program

    def report_lanes(self, lanes: Mapping[str, "LaneSums"]) -> None:
        """Report lane statistics of async nodes to the driver; called in a task."""
        for node, sums in lanes.items():
            if node in self._reports:
                self._reports[node].add(sums)

    def count(self, counts: RecordCounts) -> None:
        """Report drop counts to the driver; called in a task."""
        if self._counts is not None:
            self._counts.add(counts)
