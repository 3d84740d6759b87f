"""The columns that sinks accept, and their values from Arrow batches."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from thulawa.core.types import Headers
from thulawa.errors import ConfigurationError
from thulawa.priority.placement import unstamped

_TYPES = {  # as Spark's `simpleString` writes them
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp", "timestamp_ntz"),
    "headers": ("array<struct<key:string,value:binary>>",),
}
COLUMNS = tuple(_TYPES)


def check_columns(schema: StructType, topic: str | None) -> None:
    """Raise `ConfigurationError` for a schema that a sink cannot write."""
    if topic is None and "topic" not in schema.names:
        raise ConfigurationError(
            'the sink needs a topic: topic=…, .option("topic", "…") or a column topic'
        )
    if "value" not in schema.names:
        raise ConfigurationError(f"the sink needs a column value; there are {schema.names}")
    if unknown := set(schema.names) - set(COLUMNS):
        raise ConfigurationError(
            f"the sink does not know the columns {sorted(unknown)}; it takes {COLUMNS}"
        )
    for field in schema:
        kind, accepted = field.dataType.simpleString(), _TYPES[field.name]
        if kind not in accepted:
            raise ConfigurationError(
                f"the sink takes {field.name} as {' or '.join(accepted)}, not as {kind}: cast it, "
                "or use to_json() for what is nested"
            )


def header_pairs(headers: list[dict[str, Any]], *, placed: bool) -> Headers:
    """Return headers as pairs; without a bucket stamp if the sink chooses the partition."""
    pairs = tuple((one["key"], one["value"]) for one in headers)
    return pairs if placed else tuple(unstamped(pairs))


def sink_rows(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """Yield the values of `COLUMNS` row by row; those of a missing column are None."""
    return zip(*(_values(batch, name) for name in COLUMNS), strict=True)


def _values(batch: pa.RecordBatch, name: str) -> list[Any]:
    index = batch.schema.get_field_index(name)
    if index < 0:
        return [None] * batch.num_rows
    column = batch.column(index)
    if name in ("key", "value"):
        column = column.cast(pa.binary())
    elif name == "timestamp":  # in milliseconds
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values
