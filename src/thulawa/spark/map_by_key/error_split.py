"""``split_errors``: the good and the failed rows of a `map_by_key`, from one computation.

Two filters over one DataFrame are two computations with separate calls: a call that answers
differently the second time puts its row into both outputs or into neither. So the rows are computed
once and stored on the executors' disks as a local checkpoint. A stored partition that is lost is
never recomputed: reading it fails.
"""

from collections.abc import Iterator
from typing import Self

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from thulawa.errors import ConfigurationError
from thulawa.spark.internals import unpersist_local_checkpoint
from thulawa.spark.map_by_key.operator import ERROR_COLUMN
from thulawa.spark.map_by_key.order_guard import name_earlier_operators


def split_errors(df: DataFrame) -> "ErrorSplit":
    """Compute the result of ``on_error="column"`` once; return its good and its failed rows.

    The result unpacks to two DataFrames, ``good, dead = split_errors(df)``. Every row is in exactly
    one of them, and every call is made once. The rows are computed when ``split_errors`` is called
    and stored on the executors' disks until `ErrorSplit.release`, or until neither DataFrame is
    referenced.

    .. versionadded:: 0.1.0
    """
    if ERROR_COLUMN not in df.columns:
        raise ConfigurationError(
            f"there is no column {ERROR_COLUMN}: use map_by_key(..., on_error='column') before"
        )
    if df.isStreaming:
        raise ConfigurationError(
            "split_errors() of a streaming DataFrame would make every call twice, once for each "
            "query; call it inside foreachBatch, or use on_error='dead_letter'"
        )
    return ErrorSplit(df)


class ErrorSplit:
    """The good and the failed rows of one computation; unpacks to ``(good, dead)``.

    As a context manager it releases the stored rows at its end.

    .. versionadded:: 0.1.0
    """

    def __init__(self, df: DataFrame) -> None:
        self._stored = df.localCheckpoint(eager=True, storageLevel=StorageLevel.DISK_ONLY)
        rows = name_earlier_operators(self._stored, df)
        failed = f.col(ERROR_COLUMN).isNotNull()
        self.good: DataFrame = rows.where(~failed).drop(ERROR_COLUMN)
        self.dead: DataFrame = rows.where(failed)

    def __iter__(self) -> Iterator[DataFrame]:
        return iter((self.good, self.dead))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Delete the stored rows; reading ``good`` or ``dead`` fails afterwards."""
        unpersist_local_checkpoint(self._stored)
