"""Send a program to Python workers as pickled bytes, which each worker loads once.

Spark sends the pickled function with every task of every micro-batch. Loading a large program takes
long, so it is pickled separately and each worker caches it. This module imports none that run
programs: Spark starts extra processes only to ask for a state schema, which must start fast.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from pyspark import cloudpickle

from thulawa.errors import TopologyError

if TYPE_CHECKING:
    from thulawa.engine.lane_sums import LaneSums
    from thulawa.runtime.metrics import RecordCounts
    from thulawa.spark.map_by_key.lane_report import LaneReport
    from thulawa.spark.micro_batch.dropped_records import CountReport
    from thulawa.spark.micro_batch.program import Program
    from thulawa.topology.topology import Topology

__all__ = ["ShippedProgram", "check_picklable"]

EMPTY: Mapping[str, "LaneReport"] = MappingProxyType({})
_MOST = 16  # programs in a worker's cache

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


class ShippedProgram:
    """A pickled program with its accumulators, which must be unpickled anew for each task."""

    def __init__(
        self,
        program: "Program",
        reports: Mapping[str, "LaneReport"] = EMPTY,
        counts: "CountReport | None" = None,
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
            while len(_opened) >= _MOST:
                del _opened[next(iter(_opened))]
            _opened[self._run] = program
        return program

    def report_lanes(self, lanes: Mapping[str, "LaneSums"]) -> None:
        """Report lane statistics of async nodes to the driver; called in a task."""
        for node, sums in lanes.items():
            if node in self._reports:
                self._reports[node].add(sums)

    def count(self, counts: "RecordCounts") -> None:
        """Report drop counts to the driver; called in a task."""
        if self._counts is not None:
            self._counts.add(counts)
