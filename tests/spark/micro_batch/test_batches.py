"""What a program gives does not depend on how its batches are cut, or in which order rows come."""

from typing import Any

import pytest

from tests.spark.dry import DryQuery, Input
from thulawa.errors import ProductionError
from thulawa.runtime.partition_groups import TopicPartition
from thulawa.runtime.task_options import TaskOptions
from thulawa.streams import Materialized, Repartitioned, StreamsBuilder


def values(rows: list[dict[str, Any]]) -> list[bytes]:
    return [row["value"] for row in rows]


def test_the_time_of_a_partition_goes_from_batch_to_batch() -> None:
    builder = StreamsBuilder()
    builder.stream("in").map_values(lambda value: value).to("out")
    options = TaskOptions(commit="batch", on_bad_timestamp="partition_time", max_ahead="1 day")
    query = DryQuery(builder.build(), {"in": 1}, options)
    query.batch({("in", 0): [Input(0, 1_000, b"a", b"1")]})
    far = [Input(1, 4_000_000_000_000, b"b", b"2")]
    assert values(query.batch({("in", 0): far})) == [b"2"]


@pytest.mark.parametrize("first", [0, 1])
def test_partitions_of_one_group_come_in_the_same_order_behind_a_shuffle(first: int) -> None:
    def one_group(counts: Any) -> list[set[TopicPartition]]:
        return [{TopicPartition(t, n) for t, count in counts.items() for n in range(count)}]

    builder = StreamsBuilder()
    rekeyed = builder.stream("in").select_key(lambda key, value: "all")
    last = rekeyed.group_by_key().reduce(lambda one, other: other, Materialized.as_("last"))
    last.to_stream().to("out")
    query = DryQuery(builder.build(), {"in": 2}, grouper=one_group)
    order = (first, 1 - first)
    found = query.batch({("in", n): [Input(0, 5, b"k", b"%d" % n)] for n in order})
    assert values(found)[-1] == b"1"


@pytest.mark.parametrize("chosen", [7, 2, -1, "x", None, 1.5, True])
def test_a_partition_that_a_repartition_does_not_have_is_refused(chosen: Any) -> None:
    builder = StreamsBuilder()
    options: Any = Repartitioned(
        name="r", partitions=2, partitioner=lambda key, value, count: chosen
    )
    repartitioned = builder.stream("in").repartition(options)
    repartitioned.group_by_key().count(Materialized.as_("counts")).to_stream().to("out")
    query = DryQuery(builder.build(), {"in": 1})
    with pytest.raises(ProductionError, match=f"returned {chosen!r}, and there are 2 partitions"):
        query.batch({("in", 0): [Input(0, 5, b"k", b"1")]})
