"""The level of a node: behind how many async nodes, and with whom it shares stores."""

from typing import Any

from thulawa.runtime.levels import depends_on_order, node_levels
from thulawa.streams import JoinWindows, Materialized, Processor, Record, StoreSpec, StreamsBuilder
from thulawa.topology.nodes import LookupJoin, Process, StreamJoin, Table
from thulawa.topology.topology import Topology


async def same(value: Any) -> Any:
    return value


def first(one: Any, _: Any) -> Any:
    return one


def levels_of(topology: Topology, kind: type) -> list[int]:
    (group,) = topology.subtopologies()
    levels = node_levels(group.nodes)
    return [levels[node.name] for node in group.nodes if isinstance(node, kind)]


def test_both_sides_of_a_join_are_on_the_level_of_the_later_one() -> None:
    builder = StreamsBuilder()
    left = builder.stream("a").map_values_async(same).map_values_async(same)
    left.join(builder.stream("b"), first, JoinWindows.of(5)).to("out")
    assert levels_of(builder.build(), StreamJoin) == [2, 2]


def test_a_table_is_up_to_date_for_who_reads_it_first() -> None:
    builder = StreamsBuilder()
    table = builder.table("b", materialized=Materialized.as_("table"))
    joined = builder.stream("a").join(table, first).map_values_async(same)
    joined.join(table, first).to("out")
    topology = builder.build()
    assert levels_of(topology, Table) == [0]
    assert levels_of(topology, LookupJoin) == [0, 1]


class Same(Processor[Any, Any, Any, Any]):
    def process(self, record: Record[Any, Any]) -> None:
        self.context.forward(record)


def test_stores_that_are_used_crosswise_connect_no_levels() -> None:
    builder = StreamsBuilder()
    for name in ("s", "t"):
        builder.add_state_store(StoreSpec(name=name))
    builder.stream("a").process(Same, "s").map_values_async(same).process(Same, "t").to("out")
    builder.stream("b").process(Same, "t").map_values_async(same).process(Same, "s").to("out")
    assert sorted(levels_of(builder.build(), Process)) == [0, 0, 1, 1]


def test_only_what_depends_on_order_makes_results_wait() -> None:
    def program(*, topic: str) -> Topology:
        builder = StreamsBuilder()
        builder.stream("a").map_values_async(same).filter(lambda k, v: True).to(topic)
        builder.stream("b").group_by_key().count().to_stream().to("counts")
        builder.global_table("g")
        return builder.build()

    def order(topology: Topology) -> list[bool]:
        return [depends_on_order(group, topology) for group in topology.subtopologies()]

    assert not any(order(program(topic="out")))
    assert any(order(program(topic="b")))  # the program reads it again
    assert any(order(program(topic="g")))
