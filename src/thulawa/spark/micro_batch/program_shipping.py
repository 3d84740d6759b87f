"""How a program gets to Python workers: as bytes that a worker reads once, when it needs them.

Spark sends a function's pickle with every task of every batch. A program of many nodes is long
to read, so it travels sealed, and a worker that has opened it before does not open it again.
Kept apart from the modules that run programs: Spark starts processes of its own to ask a
processor for its state's schema, and these need none of them.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from pyspark import cloudpickle

from thulawa.core.errors import TopologyError

if TYPE_CHECKING:
    from thulawa.engine.lane_sums import LaneSums
    from thulawa.runtime.metrics import RecordCounts
    from thulawa.spark.map_by_key.lane_report import LaneReport
    from thulawa.spark.micro_batch.dropped_records import CountReport
    from thulawa.spark.micro_batch.program import Program
    from thulawa.topology.topology import Topology

__all__ = ["Shipped", "check_travels"]

EMPTY: Mapping[str, "LaneReport"] = MappingProxyType({})
_MOST = 16  # programs that a worker remembers

_opened: dict[str, "Program"] = {}


def check_travels(topology: "Topology") -> None:
    """Refuse a program that cannot be sent to workers, at the line of the node it fails for."""
    for node in topology.nodes.values():
        try:
            cloudpickle.dumps(node)  # type: ignore[no-untyped-call]
        except Exception as error:
            raise TopologyError(
                f"{node.name!r} cannot be sent to Spark's workers: its function holds something "
                f"of this process alone ({error}); make it where it is used, or open it in init",
                where=node.where or None,
            ) from error


class Shipped:
    """A sealed program, and outside the seal the reports: a task tells by those it came with."""

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
        """Give the program, the same object each time in one process."""
        program = _opened.get(self._run)
        if program is None:
            program = cast("Program", cloudpickle.loads(self._data))
            while len(_opened) >= _MOST:
                del _opened[next(iter(_opened))]
            _opened[self._run] = program
        return program

    def tell(self, lanes: Mapping[str, "LaneSums"]) -> None:
        """Tell the driver what the lanes of async nodes came to, in a task."""
        for node, sums in lanes.items():
            if node in self._reports:
                self._reports[node].add(sums)

    def count(self, counts: "RecordCounts") -> None:
        """Report the records that nodes left out, in a task."""
        if self._counts is not None:
            self._counts.add(counts)
