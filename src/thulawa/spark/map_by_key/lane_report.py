"""What the lanes of a `map_by_key` have come to, summed up over the tasks of a query.

Tasks tell the driver when they end, through an accumulator of Spark: what was counted in a task
that failed is lost with it, and what a repeated one did is counted as what it is, work done.
"""

from pyspark import AccumulatorParam
from pyspark.sql import SparkSession

from thulawa.engine.lane_sums import LaneFigures, LaneSums, merge_lane_sums, summarize_lanes

__all__ = ["LaneReport"]


class _Adding(AccumulatorParam[LaneSums]):
    """How what tasks tell is added up."""

    def zero(self, value: LaneSums) -> LaneSums:  # noqa: ARG002 Spark's signature
        """Begin with nothing."""
        return {}

    def addInPlace(self, value1: LaneSums, value2: LaneSums) -> LaneSums:  # noqa: N802 Spark's name
        """Add lane by lane."""
        return merge_lane_sums(value1, value2)


class LaneReport:
    """Collects the figures of lanes: ``map_by_key(..., report=report)``, then ``report.lanes()``.

    .. versionadded:: 0.1.0
    """

    def __init__(self, spark: SparkSession) -> None:
        self._sums = spark.sparkContext.accumulator({}, _Adding())

    def lanes(self) -> dict[str, LaneFigures]:
        """Give the figures of each lane, of all tasks that have ended."""
        return summarize_lanes(self._sums.value)

    def add(self, sums: LaneSums) -> None:
        """Tell the driver, in a task."""
        self._sums.add(sums)
