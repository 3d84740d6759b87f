"""Counts without Spark: the same application, whose tasks run in its own process."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from thulawa.brokers.kafka.connection import Connection
from thulawa.core.types import TopicPartition
from thulawa.health.application import WindowCounts
from thulawa.health.columns import Added
from thulawa.health.kafka_tasks import CountKafka
from thulawa.health.tasks import CountLog, Range, added_by

ONE_TASK = pa.record_batch({"id": pa.array([0], pa.int64())})


class LocalCounts(WindowCounts):
    """Counts topics of the embedded log, or of Kafka."""

    def __init__(self, topics: str, *, log: str, **options: Any) -> None:
        super().__init__(topics, log=log, **options)
        self._where = log

    def _session(self) -> Any:
        return None

    def _counted(self, ranges: Sequence[Range]) -> dict[TopicPartition, list[Added]]:
        task: CountLog | CountKafka
        if self._where.startswith("kafka:"):
            task = CountKafka(Connection.of(self._where), [ranges], self._rule)
        else:
            task = CountLog(self._where, [ranges], self._rule)
        (batch,) = task([ONE_TASK])
        return added_by(batch)
