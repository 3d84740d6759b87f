"""What a function returned becomes Arrow of the declared types, or is refused; never altered."""

from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Row

from thulawa.spark.map_by_key.arrow_output import MISFITS
from thulawa.spark.map_by_key.rows import Results

ZONE = pa.timestamp("us", "Asia/Colombo")
PLACE = pa.struct([("lat", pa.float64()), ("lon", pa.float64())])
NOON = datetime(2026, 1, 1, 12, 0)  # noqa: DTZ001 of no zone, which is the point


class Placed(NamedTuple):
    lon: float
    lat: float


def arrow(kind: pa.DataType, *values: Any) -> list[Any]:
    """Give what becomes of values in a column of this type."""
    (column,) = Results(pa.schema([("x", kind)])).columns([(value,) for value in values])
    taken: list[Any] = column.to_pylist()
    return taken


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        (pa.int32(), 2.0, 2),
        (pa.int64(), np.int64(3), 3),
        (pa.int64(), np.float32(3), 3),
        (ZONE, NOON, datetime(2026, 1, 1, 6, 30, tzinfo=UTC)),
        (ZONE, datetime(2026, 1, 1, 12, tzinfo=UTC), datetime(2026, 1, 1, 12, tzinfo=UTC)),
        (ZONE, date(2026, 1, 1), datetime(2025, 12, 31, 18, 30, tzinfo=UTC)),
        (pa.timestamp("us"), NOON, NOON),
        (pa.date32(), date(2026, 1, 1), date(2026, 1, 1)),
        (PLACE, {"lon": 2.0, "lat": 1.0}, {"lat": 1.0, "lon": 2.0}),
        (PLACE, {"lat": 1.0}, {"lat": 1.0, "lon": None}),
        (PLACE, (1.0, 2.0), {"lat": 1.0, "lon": 2.0}),
        (PLACE, Row(lon=2.0, lat=1.0), {"lat": 1.0, "lon": 2.0}),
        (PLACE, Placed(lon=2.0, lat=1.0), {"lat": 1.0, "lon": 2.0}),
        (pa.list_(PLACE), [Placed(2.0, 1.0), None], [{"lat": 1.0, "lon": 2.0}, None]),
        (pa.list_(pa.int32()), np.array([1, 2]), [1, 2]),
        (pa.map_(pa.string(), pa.int32()), {"a": 1, "b": None}, [("a", 1), ("b", None)]),
        (pa.map_(pa.string(), pa.int32()), [("a", 1)], [("a", 1)]),
        (pa.list_(ZONE), [NOON], [datetime(2026, 1, 1, 6, 30, tzinfo=UTC)]),
    ],
    ids=str,
)
def test_a_value_that_fits_goes_in(kind: pa.DataType, value: Any, wanted: Any) -> None:
    assert arrow(kind, value, None) == [wanted, None]


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        (pa.int32(), 1.5, "1.5 is no whole number"),
        (pa.int32(), float("nan"), "nan is no whole number"),
        (pa.int64(), np.float64(1.5), "1.5 is no whole number"),
        (pa.int32(), True, "bool"),
        (pa.int8(), 300, "300"),
        (pa.list_(pa.int32()), [1, 1.5], "1.5 is no whole number"),
        (pa.map_(pa.string(), pa.int32()), {"a": 1.5}, "1.5 is no whole number"),
        (ZONE, 1_767_225_600, "int where a datetime was expected"),
        (ZONE, "2026-01-01", "str where a datetime was expected"),
        (pa.timestamp("us"), 5, "int where a datetime was expected"),
        (pa.date32(), 5, "int where a date was expected"),
        (PLACE, {"lat": 1.0, "lan": 2.0}, r"unknown columns \['lan'\]"),
        (PLACE, (1.0,), "was expected"),
        (PLACE, 5, "was expected"),
        (pa.list_(PLACE), 5, "iterable"),
        (pa.string(), 5, "int"),
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_is_refused(kind: pa.DataType, value: Any, reason: str) -> None:
    with pytest.raises(MISFITS, match=reason):
        arrow(kind, value, None)


def test_a_named_tuple_is_taken_by_its_names() -> None:
    columns = Results(pa.schema([("lat", pa.float64()), ("lon", pa.float64())])).columns(
        [Placed(lon=2.0, lat=1.0), (1.0, 2.0), Row(lon=2.0, lat=1.0)]
    )
    assert [column.to_pylist() for column in columns] == [[1.0] * 3, [2.0] * 3]


def test_a_duration_is_no_whole_number() -> None:
    with pytest.raises(MISFITS, match="timedelta"):
        arrow(pa.int64(), timedelta(1))
