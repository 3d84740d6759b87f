"""Counts without Spark: the same application, whose tasks run in its own process."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from thulawa.app.counting import WindowCounts
from thulawa.counts.columns import Added
from thulawa.counts.model import Place
from thulawa.counts.tasks import CountLog, Range, added_by
from thulawa.log import Log

ONE_TASK = pa.record_batch({"id": pa.array([0], pa.int64())})


class LocalCounts(WindowCounts):
    """Counts topics of the embedded log."""

    def __init__(self, topics: str, *, log: str, **options: Any) -> None:
        super().__init__(topics, log=log, **options)
        with Log(log) as opened:
            self._address = opened.address

    def _session(self) -> Any:
        return None

    def _counted(self, ranges: Sequence[Range]) -> dict[Place, list[Added]]:
        (batch,) = CountLog(self._address, [ranges], self._rule)([ONE_TASK])
        return added_by(batch)
