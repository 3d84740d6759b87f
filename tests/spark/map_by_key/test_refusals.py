"""What a `map_by_key` cannot do is refused where it is written, not when rows come."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import partial
from typing import Any

import pytest
from pyspark.sql import SparkSession

from thulawa.engine import Batch, Lane, Lanes
from thulawa.errors import ConfigurationError
from thulawa.spark.map_by_key.api import flat_map_by_key, map_by_key
from thulawa.spark.map_by_key.lane_report import LaneReport


def no_row() -> int:
    return 1


async def with_client(row: Any, client: Any) -> int:
    return 1


def same(row: Any) -> int:
    return 1


class Asking:
    async def __call__(self, row: Any, client: Any = None) -> int:
        return 1


async def coroutine() -> Any: ...


async def undecorated() -> AsyncIterator[int]:
    yield 1


@contextmanager
def not_async() -> Iterator[int]:
    yield 1


@asynccontextmanager
async def with_argument(url: str) -> AsyncIterator[int]:
    yield 1


@asynccontextmanager
async def client() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("make", [map_by_key, flat_map_by_key])
@pytest.mark.parametrize(
    ("function", "choices", "reason"),
    [
        (no_row, {}, r"no_row: the function is called with the row, and this one takes \(\)"),
        (with_client, {}, r"with the row, .*takes \(row: .*second argument .* resource="),
        (same, {"resource": client}, r"with the row and the resource, and this one takes \(row"),
        (no_row, {"batch": Batch(across_keys=True)}, "is called with a list of rows"),
        (same, {"resource": dict}, "same: resource=dict makes no async context manager"),
        (with_client, {"resource": nullcontext()}, "resource=.* is no function that makes"),
        (with_client, {"resource": coroutine}, "coroutine .*lacks @asynccontextmanager"),
        (with_client, {"resource": undecorated}, "undecorated .*lacks @asynccontextmanager"),
        (with_client, {"resource": not_async}, "not_async makes a context manager that is not"),
        (with_client, {"resource": with_argument}, "with_argument takes arguments"),
        (same, {"resource_timeout": 0}, "resource_timeout must be positive"),
    ],
)  # fmt: skip
def test_functions_that_cannot_be_called_are_refused_where_they_are_written(
    make: Any, function: Any, choices: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        make(function, key="id", returns="number long", **choices)


@pytest.mark.parametrize(
    ("function", "choices"),
    [
        (with_client, {"resource": client}),
        (partial(with_client, client=1), {}),
        (Asking(), {}),
        (Asking(), {"resource": partial(with_argument, "url")}),
        (with_client, {"resource": lambda: with_argument("url")}),
        (len, {}),
    ],
    ids=["resource", "partial", "object", "partial resource", "lambda", "builtin"],
)
def test_functions_that_can_be_called_are_taken(function: Any, choices: dict[str, Any]) -> None:
    map_by_key(function, key="id", returns="number long", **choices)


@pytest.mark.parametrize(
    ("returns", "reason"),
    [
        ("number ling", r"returns='number ling' is not a schema: .*; write names and types"),
        ("number long,", r"is not a schema: .*; write names and types"),
        (7, "returns=7 names no columns"),
    ],
)
def test_a_schema_that_cannot_be_read_is_refused_where_it_is_written(
    spark: SparkSession, returns: Any, reason: str
) -> None:
    assert spark.version
    with pytest.raises(ConfigurationError, match=reason) as refused:
        map_by_key(same, key="id", returns=returns)
    assert len(str(refused.value).splitlines()) == 1


def test_a_report_without_lanes_is_refused_where_it_is_written(spark: SparkSession) -> None:
    report = LaneReport(spark)
    with pytest.raises(ConfigurationError, match=r"report= .* goes with lanes= and lane="):
        map_by_key(same, key="id", returns="number long", report=report)
    lanes = Lanes(lanes=(Lane(name="one"), Lane(name="two")))
    chosen: Any = {"lanes": lanes, "lane": lambda row: "one", "report": report}
    map_by_key(same, key="id", returns="number long", **chosen)
