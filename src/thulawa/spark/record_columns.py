"""The columns of a record on their way out: what sinks take, and how they are read from Arrow."""

from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from thulawa.core.errors import ConfigurationError

__all__ = ["COLUMNS", "check_columns", "column_values"]

COLUMNS = ("key", "value", "topic", "partition", "timestamp", "headers")


def check_columns(schema: StructType, topic: str | None) -> None:
    """Refuse a DataFrame that a sink cannot write."""
    if topic is None and "topic" not in schema.names:
        raise ConfigurationError('the sink needs .option("topic", "…") or a column topic')
    if "value" not in schema.names:
        raise ConfigurationError(f"the sink needs a column value; there are {schema.names}")
    if unknown := set(schema.names) - set(COLUMNS):
        raise ConfigurationError(
            f"the sink does not know the columns {sorted(unknown)}; it takes {COLUMNS}"
        )


def column_values(batch: pa.RecordBatch, name: str) -> list[Any]:
    """Give a column as Python values: bytes, milliseconds; None for a column that is not there."""
    place = batch.schema.get_field_index(name)
    if place < 0:
        return [None] * batch.num_rows
    column = batch.column(place)
    if name in ("key", "value"):
        column = column.cast(pa.binary())
    elif name == "timestamp":
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values
