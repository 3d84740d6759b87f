"""Under exactly once a repartition is a shuffle only behind functions that are deterministic."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from thulawa.core.serdes import Serdes
from thulawa.runtime.partition_groups import Assignment
from thulawa.runtime.planning import SOURCE_STAGE, Plan, Repartition, plan
from thulawa.streams import (
    Grouped,
    JoinWindows,
    Materialized,
    Processor,
    Record,
    Repartitioned,
    StoreSpec,
    StreamsBuilder,
    deterministic,
)
from thulawa.topology.determinism import node_nondeterminism


def drawn(value: Any) -> Any:
    return random.choice(value)


async def looked_up(value: Any) -> Any:
    return value


class Forwards(Processor[Any, Any, Any, Any]):
    def process(self, record: Record[Any, Any]) -> None:
        self.context.forward(record)


def planned(make: Callable[[StreamsBuilder], Any], **options: Any) -> Plan:
    builder = StreamsBuilder()
    make(builder)
    return plan(builder.build(), {"in": 2, "other": 2}, **options)


def repartition(make: Callable[[StreamsBuilder], Any], **options: Any) -> Repartition:
    (one,) = planned(make, **options).repartitions.values()
    return one


def counted(stream: Any) -> Any:
    grouped = stream.group_by(lambda key, value: value["page"], Grouped(name="pages"))
    return grouped.count(Materialized.as_("views"))


def behind_undeclared(builder: StreamsBuilder) -> None:
    counted(builder.stream("in").map_values(drawn))


def behind_async(builder: StreamsBuilder) -> None:
    counted(builder.stream("in").map_values_async(looked_up))


def behind_processor(builder: StreamsBuilder) -> None:
    counted(builder.stream("in").process(Forwards))


@deterministic
class Reads(Forwards):
    """A processor that answers by what is in its store."""


def behind_a_store_that_another_fills(builder: StreamsBuilder) -> None:
    builder.add_state_store(StoreSpec(name="seen"))
    builder.stream("other").map_values(drawn).process(Reads, "seen").to("out")
    counted(builder.stream("in").process(Reads, "seen"))


def undeclared_selector(builder: StreamsBuilder) -> None:
    builder.stream("in").group_by(lambda key, value: drawn(value)).count()


def undeclared_partitioner(builder: StreamsBuilder) -> None:
    builder.stream("in").repartition(Repartitioned(partitioner=lambda key, value, n: drawn(n)))


def undeclared_branch(builder: StreamsBuilder) -> None:
    branches = builder.stream("in").split(named="b-").branch(lambda key, value: drawn(value))
    counted(branches.default_branch()["b-0"])


def undeclared_part(builder: StreamsBuilder) -> None:
    grouped = builder.stream("in").group_by(lambda key, value: value, Grouped(two_step=True))
    grouped.reduce(lambda one, other: drawn([one, other]))


def other_side_of_a_join(builder: StreamsBuilder) -> None:
    left = builder.stream("in").map_values(drawn)
    joined = left.join(builder.stream("other"), lambda a, b: [a, b], JoinWindows.of("1 s"))
    counted(joined)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (behind_undeclared, "drawn uses the variable random"),
        (behind_async, "deterministic=True"),
        (behind_processor, "Forwards is not declared"),
        (behind_a_store_that_another_fills, "drawn"),
        (undeclared_selector, "drawn"),
        (undeclared_partitioner, "drawn"),
        (undeclared_branch, "drawn"),
        (undeclared_part, "drawn"),
        (other_side_of_a_join, "drawn"),
    ],
)
def test_it_is_a_topic_behind_a_function_that_is_not_known(
    make: Callable[[StreamsBuilder], Any], reason: str
) -> None:
    one = repartition(make)
    assert one.is_topic
    assert one.durable
    assert reason in str(one.nondeterminism)
    assert "test_durability.py" in one.kind  # the user's line
    again = repartition(make, exactly_once=False)
    assert not again.is_topic
    assert again.kind == "a shuffle"


def test_functions_that_are_known_or_declared_stand_before_a_shuffle() -> None:
    def make(builder: StreamsBuilder) -> None:
        stream = builder.stream("in").filter(lambda key, value: value is not None)
        stream = stream.map_values(deterministic(lambda value: [drawn(value)]))
        stream = stream.map_values_async(looked_up, deterministic=True, emit="partition")
        counted(stream.process(deterministic(lambda: Forwards())))  # noqa: PLW0108

    assert repartition(make).kind == "a shuffle"


def test_a_function_that_no_record_of_the_repartition_passes_does_not_matter() -> None:
    def make(builder: StreamsBuilder) -> None:
        stream = builder.stream("in")
        stream.map_values(drawn).to("elsewhere")
        counted(stream).to_stream().map_values_async(looked_up).to("out")

    assert not repartition(make).is_topic


def test_what_reads_a_topic_stands_behind_the_front_alone() -> None:
    def make(builder: StreamsBuilder) -> None:
        views = counted(builder.stream("in").map_values(drawn)).to_stream()
        again = views.map_values(drawn).select_key(lambda key, value: value)
        again.group_by_key(Grouped(name="again", key_serde=Serdes.json())).count()

    made = planned(make)
    assert [part.stage for part in made.parts.values()] == [SOURCE_STAGE, 1, 1]
    assert made.stages == 1
    assert planned(make, exactly_once=False).stages == 2
    assert sorted(made.topics) == ["again-repartition", "in", "pages-repartition"]


def test_a_repartition_keeps_an_unknown_function_from_a_store() -> None:
    def make(builder: StreamsBuilder) -> None:
        safe = builder.stream("in").map_values_async(looked_up).repartition()
        safe.group_by_key().count(Materialized.as_("counts"))

    made = planned(make)
    assert all(one.is_topic for one in made.repartitions.values())
    (part,) = [part for part in made.parts.values() if part.group.stores]
    assert all(node_nondeterminism(node) is None for node in part.group.nodes)


def test_a_topic_of_the_checkpoint_stays_a_topic() -> None:
    def make(builder: StreamsBuilder) -> None:
        counted(builder.stream("in"))

    assert not repartition(make).is_topic
    kept = Assignment(durable=frozenset({"pages-repartition", "gone-repartition"}))
    one = repartition(make, assigned=kept)
    assert one.is_topic
    assert one.kind == "a topic, as the checkpoint has it"
