"""Rows that Spark has ended, told from rows that were cut off; asked inside a worker."""

from collections.abc import Iterator
from typing import TypeVar

from thulawa.core.errors import ThulawaError
from thulawa.spark.internals import worker_input

__all__ = ["CutOff", "whole"]

_T = TypeVar("_T")


class CutOff(ThulawaError):
    """Spark has given a task up; what it had sent of its rows is not to be committed."""


def whole(rows: Iterator[_T]) -> Iterator[_T]:
    """Give a sink the rows of its task; raise `CutOff` at the end of rows that have no end.

    When what makes the rows fails or is killed, Spark closes the connection to the worker of the
    sink, between two Arrow batches as often as not, and to Arrow that is an end like any other.
    Behind rows that have ended Spark sends a mark.
    """
    received = worker_input()
    if received is None:
        raise ThulawaError(
            "this version of PySpark does not say whether the rows of a sink were cut off; "
            "use the one that is named in pyproject.toml"
        )
    yield from rows
    if not received.peek(1):
        raise CutOff("Spark has given up the task of this sink before its rows had ended")
