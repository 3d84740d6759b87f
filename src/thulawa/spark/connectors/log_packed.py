"""The embedded log as stream programs read and write it: batches as they are stored.

Spark's cost is by the row, so a row is a stored batch of up to a thousand records, and is written
back as one. What the front of a program makes of them is made where they are read: to hand them to
Spark and take them back from it cost as much as to read them. Which columns there are is between
this format and `spark.streams`; users have the format ``thulawa``, with a row for each record.
Kafka's topics are read in the same way (`thulawa.spark.connectors.kafka_packed`).
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import chain
from typing import Any, TypeAlias, cast

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from thulawa.brokers.embedded import Log
from thulawa.brokers.embedded.arrow import gathered
from thulawa.core.gc_freeze import settle
from thulawa.spark.connectors.chunks import Behind, Chunk
from thulawa.spark.connectors.complete_input import whole
from thulawa.spark.connectors.exactly_once import layout_of
from thulawa.spark.connectors.log_sink import exactly_once
from thulawa.spark.connectors.log_source import LogReader, Ranges, count_of
from thulawa.spark.connectors.stream_reader import LogStreamReader, Together
from thulawa.spark.internals import spark_schema
from thulawa.spark.task_context import streamed_task

__all__ = [
    "NAME",
    "OPTIONS",
    "PackedReader",
    "Through",
    "packed_reader",
    "packed_sink",
    "read_through",
    "register",
    "stored_chunks",
]

Through: TypeAlias = Callable[[Iterator[Any]], Iterator[pa.RecordBatch]]
"""A function of chunks, or of rows of stored ones (`stored_chunks`)."""

NAME = "thulawa-packed"
_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("data", pa.binary()),
    ]
)
OPTIONS = ("through", "whole", "together", "paced")
_ROWS, _BYTES = 1_000, 2**23  # that go to Spark at a time


def register(spark: SparkSession) -> None:
    """Make the format known to a session."""
    spark.dataSource.register(PackedLogFormat)


def _stored(chunks: Iterator[Chunk | Behind]) -> Iterator[pa.RecordBatch]:
    """Yield chunks as rows of Spark."""
    return gathered(map(_row, chunks), rows=_ROWS, size=_BYTES)


def _row(one: Chunk | Behind) -> pa.RecordBatch:
    body = (int(one.behind), None) if isinstance(one, Behind) else (one.first, one.data)
    row = [[one.topic], [one.partition], *([part] for part in body)]
    return pa.record_batch(row, schema=_SCHEMA)


def stored_chunks(
    batches: Iterator[pa.RecordBatch | Chunk | Behind],
) -> Iterator[Chunk | Behind]:
    """Yield the chunks of rows of Spark, and chunks as they are."""
    for batch in batches:
        if isinstance(batch, Chunk | Behind):
            yield batch
            continue
        columns = [batch.column(name).to_pylist() for name in _SCHEMA.names]
        for topic, partition, first, data in zip(*columns, strict=True):
            if data is None:
                yield Behind(topic, partition, bool(first))
            else:
                yield Chunk(topic, partition, first, data)


def read_through(
    reader: Any, address: str | None, through: Through = _stored, columns: str | None = None
) -> DataFrame:
    """Read what a function makes of chunks, in these columns; else rows for `stored_chunks`."""
    sealed = b64encode(cloudpickle.dumps(through)).decode()  # type: ignore[no-untyped-call]
    schema = columns or spark_schema(_SCHEMA)
    rows: DataFrame = reader.schema(schema).option("through", sealed).load(address)
    return rows


def packed_reader(reader: LogReader, options: Mapping[str, str]) -> "PackedReader":
    """Return the stream reader of a format that reads chunks."""
    most = count_of(options, "maxOffsetsPerTrigger")
    whole = frozenset(options.get("whole", "").split(","))
    together, paced = (json.loads(options.get(name, "[]")) for name in ("together", "paced"))
    return PackedReader(reader, most, whole, together, paced, through=options["through"])


def packed_sink(df: DataFrame, log: str) -> DataStreamWriter:
    """Return a writer of packed rows to the topics of a log."""
    return exactly_once(df, log, NAME)


class PackedLogFormat(DataSource):
    """Stored batches of the embedded log, to read and to write, streaming."""

    @classmethod
    def name(cls) -> str:
        """Give the name of the format."""
        return NAME

    def streamReader(self, schema: StructType) -> "PackedReader":  # noqa: ARG002 `through` gives it
        """Read what comes."""
        return packed_reader(LogReader.of(self.options, also=OPTIONS), self.options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "PackedWriter":  # noqa: ARG002, FBT001
        """Append the batches of a query."""
        return PackedWriter(self.options["path"], layout_of(self.options, "Streams"))


class PackedReader(LogStreamReader):
    """Reads what comes, so many records at a time."""

    def __init__(
        self,
        reader: LogReader,
        most: int | None,
        whole: Collection[str],
        together: Together,
        paced: Together,
        *,
        through: str,
    ) -> None:
        super().__init__(reader, most, whole, together, paced)
        self._through = through  # sealed: whoever only asks for offsets does without

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Give what the function makes of one partition of Spark."""
        assert isinstance(partition, Ranges)
        settle()
        through = cast("Through", cloudpickle.loads(b64decode(self._through)))
        return through(chain(partition.behind, self._reader.chunks(partition.ranges)))


class PackedWriter(DataSourceStreamArrowWriter):
    """Writes each batch of a query exactly once."""

    def __init__(self, address: str, layout: str) -> None:
        self._address = address
        self._layout = layout

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the records of one task and the number of its batch."""
        settle()
        task = streamed_task()
        with Log(self._address) as log:
            log.append_packed(
                _outgoing(whole(iterator)),
                marker=(task.query, task.partition),
                batch=task.batch,
                layout=self._layout,
            )
        return WriterCommitMessage()


def _outgoing(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, int | None, bytes]]:
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in ("topic", "part", "data")]
        for topic, part, data in zip(*columns, strict=True):
            yield topic, None if part < 0 else part, data
