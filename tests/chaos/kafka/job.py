"""The jobs that are killed: a driver that runs one until it is killed or its query fails.

``python -m tests.chaos.kafka.job JOB BOOTSTRAP NAME FOLDER RECORDS PLAN`` reads the topic NAME-in
and writes NAME-out. The job ``map`` sends every record through `map_by_key`. The job ``rank`` is a
Streams application that numbers the records of each key, so that its output shows its state.
"""

import asyncio
import random
import sys
from functools import partial
from pathlib import Path
from typing import Any

import thulawa
from tests.chaos.harness import QUICK_SESSION, end_with_parent
from tests.chaos.kafka.crash_points import CrashPoints, add_sink_points, add_state_points
from thulawa.brokers.kafka.broker import KafkaBroker
from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.transactions import SinkSpec
from thulawa.spark.application import Streams
from thulawa.spark.connectors.kafka_sink import kafka_sink
from thulawa.spark.connectors.kafka_source import kafka_source
from thulawa.spark.micro_batch.brokers import KafkaStreamsBroker
from thulawa.streams import StreamsBuilder
from thulawa.streams.operator_options import Materialized

__all__ = ["DEFAULT_PLAN", "JOBS", "ONE_TASK", "main"]

JOBS = ("map", "rank")
DEFAULT_PLAN, ONE_TASK = "default", "one task"  # plans of the job "map"
_SETTINGS = QUICK_SESSION | {
    "spark.python.authenticate.socketTimeout": "120s",  # a crowded machine is not a failure
}


def main(job: str, bootstrap: str, name: str, folder: str, records: str, plan: str) -> None:
    """Run a job."""
    end_with_parent()
    # several Arrow batches in a micro-batch, so that it has a middle
    parts = {"spark.sql.execution.arrow.maxRecordsPerBatch": str(max(1, int(records) // 3))}
    spark = thulawa.session(name, master="local[2,4]", settings=_SETTINGS | parts)
    points = CrashPoints(Path(folder) / "crash-points")
    run = partial(_map, plan=plan) if job == "map" else _rank
    run(spark, Connection(bootstrap), name, folder, points, int(records))


async def _call(row: Any) -> tuple[bytes]:
    await asyncio.sleep(random.uniform(0.001, 0.004))
    return (row.value,)


def _map(
    spark: Any,
    connection: Connection,
    name: str,
    folder: str,
    points: CrashPoints,
    records: int,
    *,
    plan: str,
) -> None:
    rows = kafka_source(spark, connection, f"{name}-in", max_records=records)
    if plan == ONE_TASK:
        rows = rows.coalesce(1)
    mapping = thulawa.map_by_key(
        _call, key="key", returns="value binary", keep=["key", "timestamp"], in_flight=100
    )
    sink = SinkSpec(
        connection=connection, application=name, transaction_timeout=60, delivery_timeout=30
    )
    writer = kafka_sink(rows.transform(mapping), sink, topic=f"{name}-out")
    writer = add_sink_points(writer, spark, points)
    writer.option("checkpointLocation", f"{folder}/checkpoint").start().awaitTermination()


class _Rank:
    """Returns the next rank of a key; adds crash points to each worker that unpickles it."""

    def __init__(self, points: CrashPoints) -> None:
        self.points = points

    def __call__(self, key: str, number: int, last: list[int]) -> list[int]:
        return [last[0] + 1, number]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        add_state_points(self.points)


class _CrashingBroker(KafkaStreamsBroker):
    points: CrashPoints

    def write(self, rows: Any, application: str) -> Any:
        writer = super().write(rows, application)
        writer = writer.option("transactionTimeout", "60 s").option("deliveryTimeout", "30 s")
        return add_sink_points(writer, rows.sparkSession, self.points)


def _rank(
    spark: Any, connection: Connection, name: str, folder: str, points: CrashPoints, records: int
) -> None:
    builder = StreamsBuilder()
    ranks = builder.stream(f"{name}-in").group_by_key().aggregate(
        lambda: [0, -1], _Rank(points), Materialized.as_("ranks")
    )  # fmt: skip
    ranks.to_stream().to(f"{name}-out")
    streams = Streams(
        builder.build(),
        application_id=name,
        log=f"kafka://{connection.bootstrap}",
        checkpoint=f"{folder}/checkpoint",
        spark=spark,
        max_records=records,
        changelogs=True,
    )
    streams._topics = crashing = _CrashingBroker(KafkaBroker(connection))
    crashing.points = points
    with streams:
        streams.await_termination()


if __name__ == "__main__":
    main(*sys.argv[1:])
