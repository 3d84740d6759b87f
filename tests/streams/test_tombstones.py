"""Tombstones after tombstones: which tables pass them on, as Kafka Streams does."""

from collections.abc import Callable
from typing import Any

import pytest

from thulawa.streams import KTable, Materialized, StreamsBuilder, ValueTransformer
from thulawa.testing import TopologyTestDriver

Derive = Callable[[KTable[Any, Any]], KTable[Any, Any]]


class Doubled(ValueTransformer[Any, Any, Any]):
    """Return twice the value; rows that go are told as None."""

    def transform(self, key: Any, value: Any) -> Any:
        return None if value is None else 2 * value


def updates(derive: Derive, values: list[Any], *, kept: bool) -> list[Any]:
    builder = StreamsBuilder()
    materialized: Any = Materialized.as_("source") if kept else None
    derive(builder.table("in", materialized=materialized)).to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in").pipe_key_value_list([("k", value) for value in values])
        return driver.create_output_topic("out").read_values_to_list()


def positive(_: Any, value: int) -> bool:
    return value > 0


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(
    "derive",
    [
        pytest.param(lambda table: table.map_values(lambda v: 2 * v), id="map_values"),
        pytest.param(
            lambda table: table.map_values(lambda v: 2 * v, Materialized.as_("own")),
            id="map_values, kept",
        ),
        pytest.param(
            lambda table: table.transform_values(lambda _, v: 2 * v), id="transform_values"
        ),
        pytest.param(
            lambda table: table.transform_values(Doubled, Materialized.as_("own")),
            id="transformer, kept",
        ),
    ],
)
def test_a_second_tombstone_goes_through_mapped_tables(derive: Derive, kept: bool) -> None:  # noqa: FBT001
    assert updates(derive, [None, 1, None, None, 2], kept=kept) == [None, 2, None, None, 4]


@pytest.mark.parametrize("own", [False, True])
def test_a_filter_drops_it_where_old_values_are_known(own: bool) -> None:  # noqa: FBT001
    materialized: Any = Materialized.as_("own") if own else None

    def derive(table: KTable[Any, Any]) -> KTable[Any, Any]:
        return table.filter(positive, materialized)

    values = [None, -1, 1, None, None, -1, 2, -2, -3]
    assert updates(derive, values, kept=True) == [1, None, 2, None]
    assert updates(derive, values, kept=False) == [None, None, 1, None, None, None, 2, None, None]


def test_a_filter_behind_a_mapped_table_drops_it() -> None:
    values = [None, 1, None, None]
    assert updates(lambda t: t.map_values(abs).filter(positive), values, kept=True) == [1, None]


def joined(kind: str, *, filtered_first: bool) -> list[Any]:
    """Return the results of a join whose right side is filtered; only the filter keeps nothing."""
    builder = StreamsBuilder()
    left, right = builder.table("left"), builder.table("right").filter(positive)
    join = getattr(left, kind) if filtered_first else getattr(right, kind)
    other = right if filtered_first else left
    join(other, lambda a, b: [a, b]).to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("left").pipe_input("k", "L")
        driver.create_input_topic("right").pipe_key_value_list([("k", -1), ("k", -2), ("k", 3)])
        return driver.create_output_topic("out").read_values_to_list()


def test_a_left_join_repeats_its_result_when_a_filtered_right_row_changes() -> None:
    # Kafka Streams asks the right side of a left join for no old values, and repeats as well
    repeated = [["L", None], ["L", None], ["L", None], ["L", 3]]
    assert joined("left_join", filtered_first=True) == repeated


def test_an_outer_join_asks_for_old_values_and_repeats_nothing() -> None:
    assert joined("outer_join", filtered_first=True) == [["L", None], ["L", 3]]


def test_a_filtered_left_side_of_a_left_join_repeats_nothing() -> None:
    assert joined("left_join", filtered_first=False) == [[3, "L"]]
