"""Detect input of a sink that Spark cut off; runs inside a Python worker."""

from collections.abc import Iterator
from typing import TypeVar

from thulawa.errors import IncompleteInput, ThulawaError
from thulawa.spark.internals import worker_input

__all__ = ["require_complete_input"]

_T = TypeVar("_T")


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
