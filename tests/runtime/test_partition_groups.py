"""Partition groups: every partition in exactly one task."""

from typing import Any

import pytest

from thulawa.errors import ConfigurationError
from thulawa.runtime.partition_groups import TopicPartition, by_number, partition_groups
from thulawa.streams import Materialized, StreamsBuilder
from thulawa.testing import TopologyTestDriver


def test_partitions_of_equal_number_belong_together() -> None:
    groups = partition_groups({"a": 2, "b": 2})
    assert groups == [{"a": (0,), "b": (0,)}, {"a": (1,), "b": (1,)}]


def pairs(partitions: Any) -> list[set[TopicPartition]]:
    """Two partitions to a task."""
    groups = by_number(partitions)
    return [
        groups[i] | (groups[i + 1] if i + 1 < len(groups) else set())
        for i in range(0, len(groups), 2)
    ]


def test_a_grouper_of_ones_own_decides_how_many_tasks_there_are() -> None:
    builder = StreamsBuilder()
    builder.stream("in").group_by_key().count(Materialized.as_("counts"))
    with TopologyTestDriver(builder.build(), partitions=4, grouper=pairs) as driver:
        driver.create_input_topic("in").pipe_key_value_list([(f"k{n}", n) for n in range(100)])
        held = [len(driver.get_key_value_store("counts", task)) for task in (0, 1)]
        with pytest.raises(ConfigurationError, match="task 2 has no"):
            driver.get_key_value_store("counts", 2)
    assert sum(held) == 100
    assert min(held) > 0


@pytest.mark.parametrize(
    ("grouper", "message"),
    [
        (lambda p: [], "omits"),
        (lambda p: [{TopicPartition("a", 0)}, {TopicPartition("a", 0)}], "into two groups"),
        (lambda p: [{TopicPartition("a", 0), TopicPartition("b", 9)}], "does not exist"),
    ],
)
def test_a_grouping_that_loses_or_doubles_a_partition_is_refused(
    grouper: Any, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        partition_groups({"a": 1}, grouper)
