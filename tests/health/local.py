"""Window counts without Spark: the tasks of the application run in its own process."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from thulawa.core.types import TopicPartition
from thulawa.health.application import WindowCounts
from thulawa.health.counter import Added
from thulawa.health.tasks import CountRanges, Range, added_by

ONE_TASK = pa.record_batch({"id": pa.array([0], pa.int64())})


class LocalCounts(WindowCounts):
    """Window counts whose tasks run in this process."""

    def _session(self) -> Any:
        return None

    def _counted(self, ranges: Sequence[Range]) -> dict[TopicPartition, list[Added]]:
        (batch,) = CountRanges(self._broker, [ranges], self._rule)([ONE_TASK])
        return added_by(batch)
