"""What exactly-once sinks share: checks of the checkpoint at start, and of a task's input.

A single task of a sink cannot distinguish the rerun of a micro-batch from a micro-batch of an older
checkpoint that has the same number and other records. The offset log can: a marker of a micro-batch
that the checkpoint never began belongs to a later checkpoint. And a task sees only its own marker;
only all markers together show that rows have moved between tasks.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from thulawa.core.markers import LastBatch, check_checkpoint
from thulawa.errors import ConfigurationError, IncompleteInput, ThulawaError
from thulawa.spark.internals import list_folder, read_text, worker_input

LAYOUT = "layout"
"""The option that passes the task layout of the plan to the sink."""

_LOCATION = "checkpointLocation"
_T = TypeVar("_T")


class ExactlyOnceWriter(DataStreamWriter):
    """Writer of a streaming DataFrame that raises if its checkpoint does not match the sink.

    ``markers`` returns the last micro-batch of each task of a query; ``fence`` runs before it and
    fences writers of earlier starts.
    """

    def __init__(
        self,
        df: DataFrame,
        *,
        writer: str,
        layout: str,
        markers: Callable[[str], Mapping[int, LastBatch]],
        fence: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(df)
        self._writer = writer
        self._layout = layout
        self._markers = markers
        self._fence = fence
        self._session = df.sparkSession
        self._location: str | None = None
        self._query_name: str | None = None
        self.option(LAYOUT, layout)

    def option(self, key: str, value: Any) -> "ExactlyOnceWriter":
        """Add an option of the sink."""
        if key.lower() == _LOCATION.lower():
            self._location = str(value)
        super().option(key, value)
        return self

    def options(self, **options: Any) -> "ExactlyOnceWriter":
        """Add options of the sink."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def queryName(self, queryName: str) -> "ExactlyOnceWriter":  # noqa: N803 Spark's names
        """Name the query."""
        self._query_name = queryName
        super().queryName(queryName)
        return self

    def start(
        self,
        path: str | None = None,
        format: str | None = None,  # noqa: A002 Spark's name
        outputMode: str | None = None,  # noqa: N803
        partitionBy: str | list[str] | None = None,  # noqa: N803
        queryName: str | None = None,  # noqa: N803
        **options: Any,
    ) -> StreamingQuery:
        """Start the query; raise `StateError` if checkpoint and markers do not match."""
        self.options(**options)
        if queryName is not None:
            self.queryName(queryName)
        if self._fence is not None:
            self._fence()
        if (checkpoint := self._checkpoint()) is not None:
            query, begun, committed = checkpoint
            found = self._markers(query)
            check_checkpoint(begun, committed, found, writer=self._writer, layout=self._layout)
        return super().start(path, format, outputMode, partitionBy)

    def _checkpoint(self) -> tuple[str, int, int] | None:
        """Return query id, last begun and last committed batch; None if there is no checkpoint."""
        location, spark = self._location, self._session
        if location is None and self._query_name is not None:
            root = spark.conf.get(f"spark.sql.streaming.{_LOCATION}", None)
            location = None if root is None else f"{root}/{self._query_name}"
        # read through Spark, because it may be on any file system that Spark reads
        metadata = None if location is None else read_text(spark, location, "metadata")
        if location is None or metadata is None:
            return None
        logs = (list_folder(spark, location, log) for log in ("offsets", "commits"))
        begun, committed = (max(map(int, filter(str.isdecimal, log)), default=-1) for log in logs)
        return str(json.loads(metadata)["id"]), begun, committed


def layout_of(options: Mapping[str, str], sink: str) -> str:
    """Return the layout from the options of a format; raise if the plan was not checked."""
    found = options.get(LAYOUT)
    if found is None:
        raise ConfigurationError(
            "writing exactly once needs a plan that keeps rows in their tasks, which a format "
            f"cannot check.\nWrite with thulawa.{sink} instead of writeStream.format(…)"
        )
    return found


def require_complete_input(rows: Iterator[_T]) -> Iterator[_T]:
    """Yield the rows of a sink's task; raise `IncompleteInput` after rows that were cut off.

    When the task that computes the rows fails or is killed, Spark closes the connection to the
    sink's worker, often between two Arrow batches, which Arrow reads as a regular end of stream.
    Only after complete input does Spark send its end-of-stream marker, so a sink commits only when
    the marker has arrived.
    """
    received = worker_input()
    if received is None:
        raise ThulawaError(
            "this version of PySpark does not show whether a sink's rows were cut off; "
            "use the version that is named in pyproject.toml"
        )
    yield from rows
    if not received.peek(1):
        raise IncompleteInput("Spark abandoned the task of this sink before its last row")
