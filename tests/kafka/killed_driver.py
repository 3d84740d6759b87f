"""A Spark driver that copies a topic and kills itself: run as a program by the fault tests.

``python killed_driver.py BOOTSTRAP NAME CHECKPOINT POINT`` with POINT one of ``mid batch`` (rows
handed to Kafka, nothing committed), ``after commit`` (Kafka has committed, Spark has not) or
``never``.
"""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from thulawa.kafka.connection import Connection
from thulawa.kafka.transactions import SinkSpec
from thulawa.spark.kafka_sink import Committed, KafkaFormat, KafkaStreamWriter, kafka_sink
from thulawa.spark.kafka_source import kafka_source
from thulawa.spark.session import session


def main(bootstrap: str, name: str, checkpoint: str, point: str) -> None:
    class DyingWriter(KafkaStreamWriter):
        driver = 0
        jvm = 0

        def die(self) -> None:
            for pid in (self.driver, self.jvm):
                os.kill(pid, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

        def write(self, iterator: Iterator[pa.RecordBatch]) -> Committed:
            return super().write(self.dying(iterator) if point == "mid batch" else iterator)

        def dying(self, iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from iterator
            import time  # noqa: PLC0415 runs in a worker

            time.sleep(0.5)  # the producer sends what it was given; it is open, and on the broker
            self.die()

        def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 Spark's name
            if point == "after commit":
                self.die()

    class DyingFormat(KafkaFormat):
        def streamWriter(self, schema: StructType, overwrite: bool) -> KafkaStreamWriter:  # noqa: FBT001, N802
            made = super().streamWriter(schema, overwrite)
            writer = DyingWriter(made._sink, made._topic)
            writer.driver, writer.jvm = driver, jvm
            return writer

    settings = {"spark.ui.enabled": "false", "spark.log.level": "ERROR"}
    spark = session("killed", master="local[2]", settings=settings)
    driver, jvm = os.getpid(), spark._jvm.ProcessHandle.current().pid()  # type: ignore[union-attr]
    connection = Connection(bootstrap)
    rows = kafka_source(spark, connection, f"{name}-in", max_records=100)
    sink = SinkSpec(connection=connection, application=name)
    writer = kafka_sink(rows.select("key", "value", "timestamp"), sink, topic=f"{name}-out")
    spark.dataSource.register(DyingFormat)
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start(
    ).awaitTermination()  # fmt: skip
    Path(checkpoint, "finished").touch()


if __name__ == "__main__":
    main(*sys.argv[1:])
