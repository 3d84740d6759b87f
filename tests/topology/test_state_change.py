"""Editing between runs: another topology, and what becomes of the state."""

from typing import Any

import pytest

from thulawa.errors import TopologyError
from thulawa.streams import Materialized, Processor, StoreSpec, StreamsBuilder, Topology
from thulawa.testing import TopologyTestDriver
from thulawa.topology.nodes import Stateless


def program() -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in").map_values(lambda v: v + 1, named="add-one")
    stream.filter(lambda k, v: v > 0, named="positive").group_by_key().count(
        Materialized.as_("counts"), named="count"
    ).to_stream(named="updates").to("out")
    return builder.build()


def results(topology: Topology, *values: int) -> list[tuple[Any, Any]]:
    with TopologyTestDriver(topology) as driver:
        driver.create_input_topic("in").pipe_key_value_list([("k", value) for value in values])
        return driver.create_output_topic("out").read_key_values_to_list()


def test_a_function_is_replaced_and_the_original_stays() -> None:
    original = program()
    edited = original.replace("positive", function=lambda k, v: v > 10)
    assert results(edited, 1, 100) == [("k", 1)]
    assert results(original, 1, 100) == [("k", 1), ("k", 2)]
    assert original.state_change(edited).is_safe


def test_a_node_is_removed_and_the_ends_are_joined() -> None:
    edited = program().remove("positive")
    assert results(edited, -5, 1) == [("k", 1), ("k", 2)]
    assert edited.nodes["count"].parents == ("add-one",)


def test_a_node_is_inserted() -> None:
    double = Stateless(name="double", operation="flat_map_values", function=lambda v: [v, v])
    edited = program().insert_after("add-one", double)
    assert results(edited, 1) == [("k", 1), ("k", 2)]
    assert list(edited.nodes).index("double") == list(edited.nodes).index("add-one") + 1


def test_state_survives_by_name_and_kind() -> None:
    old, new = program(), StreamsBuilder()
    new.table("in", materialized=Materialized.as_("counts"))
    new.stream("other").group_by_key().count(Materialized.as_("more"))
    change = old.state_change(new.build())
    assert (change.kept, change.lost, change.added) == (("counts",), (), ("more",))
    versioned = StreamsBuilder()
    versioned.table("in", materialized=Materialized.versioned("counts", history=5))
    change = old.state_change(versioned.build())
    assert (change.kept, change.lost) == ((), ("counts",))
    assert not change.is_safe


def test_the_store_of_a_removed_processor_is_lost() -> None:
    class Idle(Processor[Any, Any, Any, Any]):
        def process(self, record: Any) -> None: ...

    topology = Topology().add_source("in", "in").add_processor("p", Idle, "in")
    topology.add_state_store(StoreSpec(name="mine"), "p")
    edited = topology.remove("p")
    assert topology.state_change(edited).lost == ("mine",)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.remove("count"), "part of a Aggregate"),
        (lambda t: t.remove("nobody"), "no node 'nobody'"),
        (lambda t: t.replace("positive", name="x"), "cannot be replaced"),
        (lambda t: t.replace("positive", window=3), "has no 'window'"),
        (lambda t: t.insert_after("add-one", t.nodes["positive"]), "already exists"),
    ],
)
def test_an_edit_that_breaks_the_graph_is_refused(edit: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        edit(program())
