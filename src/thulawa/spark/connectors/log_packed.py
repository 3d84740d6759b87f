"""The format in which stream programs read and write the embedded log: packed record batches.

Spark's costs grow with the number of rows, so a row holds a stored batch of up to a thousand
records. The first stage of a program runs inside the source: passing its input through Spark to
another operator costs as much as reading it. The columns are private to this format and
`thulawa.spark.micro_batch`; users have the format ``thulawa``, with one row per record. Kafka's
topics are read the same way (`thulawa.spark.connectors.kafka_source`).
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, TypeAlias, cast

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from thulawa.brokers.embedded import Log
from thulawa.brokers.embedded.arrow import gathered
from thulawa.core.gc_freeze import freeze_gc
from thulawa.spark.connectors.chunks import Behind, Chunk
from thulawa.spark.connectors.exactly_once import layout_of
from thulawa.spark.connectors.log_sink import LogFormat, LogStreamWriter, LogWriter, exactly_once
from thulawa.spark.connectors.log_source import LogReader, SourcePartition, count_of
from thulawa.spark.connectors.stream_reader import LogStreamReader, SourceFormat
from thulawa.spark.internals import spark_schema

ChunkFunction: TypeAlias = Callable[[Iterator[Any]], Iterator[pa.RecordBatch]]
"""A function over chunks, or over rows that hold chunks (`chunks_of`)."""

_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("data", pa.binary()),
    ]
)
_OPTIONS = ("function", "unboundedTopics", "orderedGroups", "pacedGroups")
_ROWS, _BYTES = 1_000, 2**23  # at most, per Arrow batch


def _to_rows(chunks: Iterator[Chunk | Behind]) -> Iterator[pa.RecordBatch]:
    return gathered(map(_row, chunks), rows=_ROWS, size=_BYTES)


def _row(one: Chunk | Behind) -> pa.RecordBatch:
    body = (int(one.behind), None) if isinstance(one, Behind) else (one.first, one.data)
    row = [[one.topic], [one.partition], *([part] for part in body)]
    return pa.record_batch(row, schema=_SCHEMA)


def chunks_of(
    batches: Iterator[pa.RecordBatch | Chunk | Behind],
) -> Iterator[Chunk | Behind]:
    """Yield the chunks that Spark rows hold; chunks themselves are passed on unchanged."""
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


def read_chunks(
    reader: Any, function: ChunkFunction = _to_rows, columns: str | None = None
) -> DataFrame:
    """Return what a function makes of chunks, with these columns; by default `chunks_of` rows."""
    pickled = b64encode(cloudpickle.dumps(function)).decode()  # type: ignore[no-untyped-call]
    schema = columns or spark_schema(_SCHEMA)
    rows: DataFrame = reader.schema(schema).option("function", pickled).load()
    return rows


def packed_sink(df: DataFrame, log: str) -> DataStreamWriter:
    """Return a writer of packed rows to the topics of a log, exactly once."""
    return exactly_once(df, log, PackedLogFormat.FORMAT, deterministic=True)


class PackedSource(SourceFormat):
    """Format whose streaming reader applies a function to chunks."""

    def streamReader(self, schema: StructType) -> "PackedReader":  # noqa: ARG002 `read_chunks` sets it
        """Create the streaming reader."""
        options = self.options
        return PackedReader(
            self.log_reader(*_OPTIONS),
            count_of(options, "maxOffsetsPerTrigger"),
            unbounded_topics=frozenset(options.get("unboundedTopics", "").split(",")),
            ordered_groups=json.loads(options.get("orderedGroups", "[]")),
            paced_groups=json.loads(options.get("pacedGroups", "[]")),
            function=options["function"],
        )


class PackedLogFormat(PackedSource, LogFormat):
    """Streaming source and sink of the embedded log's record batches."""

    FORMAT = "thulawa-packed"

    def streamWriter(self, schema: StructType, overwrite: bool) -> "PackedWriter":  # noqa: ARG002, FBT001
        """Create the streaming writer."""
        writer = LogWriter(self.options["path"], topic=None)
        return PackedWriter(writer, layout_of(self.options, "Streams"))


class PackedReader(LogStreamReader):
    """Streaming reader that applies a function to the chunks of each Spark partition."""

    def __init__(
        self, reader: LogReader, max_records: int | None, *, function: str, **groups: Any
    ) -> None:
        super().__init__(reader, max_records, **groups)
        self._function = function  # pickled: the process that plans offsets never loads it

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield what the function makes of the chunks of one Spark partition."""
        assert isinstance(partition, SourcePartition)
        freeze_gc()
        function = cast("ChunkFunction", cloudpickle.loads(b64decode(self._function)))
        return function(chain(partition.behind, self._reader.chunks(partition.ranges)))


class PackedWriter(LogStreamWriter):
    """Writes packed rows, each micro-batch exactly once."""

    def _append(self, log: Log, rows: Iterator[pa.RecordBatch], **batch: Any) -> None:
        log.append_packed(_outgoing(rows), **batch)


def _outgoing(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, int | None, bytes]]:
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in ("topic", "part", "data")]
        for topic, part, data in zip(*columns, strict=True):
            yield topic, None if part < 0 else part, data
