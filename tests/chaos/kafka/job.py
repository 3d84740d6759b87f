"""The jobs that are killed: a driver that runs one until it is killed or its query fails.

``python -m tests.chaos.kafka.job JOB BOOTSTRAP NAME FOLDER RECORDS PLAN`` reads NAME-in, writes
NAME-out, and ends when its standard input does. ``map`` sends every record through `map_by_key`;
``rank`` is a stream program that numbers the records of each key, so its state shows in what it
writes.
"""

import asyncio
import os
import random
import sys
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import thulawa
from benchmarks.sessions import QUIET
from tests.chaos.kafka.traps import Traps, trap_state, trapped
from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.transactions import SinkSpec
from thulawa.spark.application import Streams
from thulawa.spark.connectors.kafka_sink import kafka_sink
from thulawa.spark.connectors.kafka_source import kafka_source
from thulawa.spark.micro_batch.broker_formats import KafkaFormats
from thulawa.spark.micro_batch.brokers import StreamsBroker
from thulawa.streams import StreamsBuilder
from thulawa.streams.operator_options import Materialized

__all__ = ["AS_IT_WAS", "JOBS", "ONE_TASK", "main"]

JOBS = ("map", "rank")
AS_IT_WAS, ONE_TASK = "as it was", "one task"  # plans of the first job
_SETTINGS = QUIET | {
    "spark.python.authenticate.socketTimeout": "120s",  # a crowded machine is not a failure
}


def main(job: str, bootstrap: str, name: str, folder: str, records: str, plan: str) -> None:
    """Run a job."""
    threading.Thread(target=_end_with_the_caller, daemon=True).start()
    # a batch is to have a middle
    parts = {"spark.sql.execution.arrow.maxRecordsPerBatch": str(max(1, int(records) // 3))}
    spark = thulawa.session(name, master="local[2,4]", settings=_SETTINGS | parts)
    traps = Traps(Path(folder) / "traps")
    run = partial(_map, plan=plan) if job == "map" else _rank
    run(spark, Connection(bootstrap), name, folder, traps, int(records))


def _end_with_the_caller() -> None:
    sys.stdin.read()
    os._exit(0)


async def _call(row: Any) -> tuple[bytes]:
    await asyncio.sleep(random.uniform(0.001, 0.004))
    return (row.value,)


def _map(
    spark: Any,
    connection: Connection,
    name: str,
    folder: str,
    traps: Traps,
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
    writer = trapped(writer, spark, traps)
    writer.option("checkpointLocation", f"{folder}/checkpoint").start().awaitTermination()


class _Rank:
    """Gives a record the next number of its key; brings the traps to the worker it is read in."""

    def __init__(self, traps: Traps) -> None:
        self.traps = traps

    def __call__(self, key: str, number: int, last: list[int]) -> list[int]:
        return [last[0] + 1, number]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        trap_state(self.traps)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TrappedFormats(KafkaFormats):
    traps: Traps

    def write(self, rows: Any, application: str) -> Any:
        writer = KafkaFormats.write(self, rows, application)
        writer = writer.option("transactionTimeout", "60 s").option("deliveryTimeout", "30 s")
        return trapped(writer, rows.sparkSession, self.traps)


def _rank(
    spark: Any, connection: Connection, name: str, folder: str, traps: Traps, records: int
) -> None:
    builder = StreamsBuilder()
    ranks = builder.stream(f"{name}-in").group_by_key().aggregate(
        lambda: [0, -1], _Rank(traps), Materialized.as_("ranks")
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
    formats = _TrappedFormats(connection, traps=traps)
    streams._topics = StreamsBroker(streams._topics.broker, formats)
    with streams:
        streams.await_termination()


if __name__ == "__main__":
    main(*sys.argv[1:])
