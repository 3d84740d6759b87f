"""Lane statistics of a `map_by_key`, summed over the tasks of a query.

Tasks report through a Spark accumulator when they end: the statistics of a failed task are lost,
and those of its retry are counted.
"""

from pyspark import AccumulatorParam
from pyspark.sql import SparkSession

from thulawa.engine.lane_sums import LaneSums, merge_lane_sums, summarize_lanes
from thulawa.engine.statistics import LaneStatistics


class _LaneSumsParam(AccumulatorParam[LaneSums]):
    def zero(self, value: LaneSums) -> LaneSums:  # noqa: ARG002 Spark's signature
        return {}

    def addInPlace(self, value1: LaneSums, value2: LaneSums) -> LaneSums:  # noqa: N802 Spark's name
        return merge_lane_sums(value1, value2)


class LaneReport:
    """Collects lane statistics: ``map_by_key(..., report=report)``, then ``report.lanes()``.

    .. versionadded:: 0.1.0
    """

    def __init__(self, spark: SparkSession) -> None:
        self._sums = spark.sparkContext.accumulator({}, _LaneSumsParam())

    def lanes(self) -> dict[str, LaneStatistics]:
        """Return the statistics of each lane, over all tasks that have ended."""
        return summarize_lanes(self._sums.value)

    def add(self, sums: LaneSums) -> None:
        """Add statistics; called in a task."""
        self._sums.add(sums)
