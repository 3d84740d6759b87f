"""A program becomes a line of stages: what feeds comes before what is fed, loops are topics."""

import pickle
from typing import Any

import pytest

from thulawa.core.partitioning import partition_of
from thulawa.core.records import Window, Windowed
from thulawa.core.serdes import Serde, Serdes
from thulawa.errors import (
    ConfigurationError,
    SerializationError,
)
from thulawa.runtime.partition_groups import TopicPartition
from thulawa.runtime.planning import SOURCE_STAGE, Plan, Repartition, plan
from thulawa.streams.operator_options import Consumed, Grouped, Repartitioned
from thulawa.streams.streams_builder import StreamsBuilder
from thulawa.topology.nodes import Sink, Source
from thulawa.topology.windows import TimeWindows


def stages(made: Plan) -> list[int]:
    return [part.stage for part in made.parts.values()]


def sinks(made: Plan) -> list[Sink]:
    return [node for node in made.topology.nodes.values() if isinstance(node, Sink)]


def test_what_looks_at_one_record_at_a_time_runs_where_its_topic_is_read() -> None:
    builder = StreamsBuilder()
    builder.stream("in").filter(lambda key, value: value).map_values(str).to("out")
    made = plan(builder.build(), {"in": 3})
    assert stages(made) == [SOURCE_STAGE]
    assert made.stages == 0
    assert made.topics == ("in",)


def test_state_has_a_stage_even_without_a_repartition() -> None:
    builder = StreamsBuilder()
    builder.stream("in").group_by_key().count().to_stream().to("out")
    made = plan(builder.build(), {"in": 3})
    assert stages(made) == [1]
    assert made.tasks == 3


def test_a_repartition_leads_from_one_stage_to_the_next() -> None:
    builder = StreamsBuilder()
    counts = builder.stream("in").group_by(lambda key, value: value).count().to_stream()
    counts.group_by(lambda key, value: value).count().to_stream().to("out")
    made = plan(builder.build(), {"in": 2})
    assert stages(made) == [SOURCE_STAGE, 1, 2]
    assert [one.is_topic for one in made.repartitions.values()] == [False, False]
    assert made.topics == ("in",)


def test_records_of_several_topics_meet_in_a_stage_unless_their_order_does_not_matter() -> None:
    builder = StreamsBuilder()
    builder.stream(["one", "other"]).map_values(str).to("out")
    topology = builder.build()
    assert stages(plan(topology, {"one": 1, "other": 1})) == [1]
    assert stages(plan(topology, {"one": 1, "other": 1}, in_order=False)) == [SOURCE_STAGE]


def test_the_answers_of_a_foreign_key_join_come_back_through_a_topic() -> None:
    builder = StreamsBuilder()
    orders, customers = builder.table("orders"), builder.table("customers")
    orders.join(
        customers, lambda one, other: [one, other], foreign_key=lambda value: value
    ).to_stream().to("out")
    made = plan(builder.build(), {"orders": 2, "customers": 2})
    loops = [name for name, one in made.repartitions.items() if one.is_topic]
    assert len(loops) == 1
    assert set(loops) < set(made.topics)
    assert len(made.repartitions) == 2


def test_joined_topics_must_have_as_many_partitions_unless_a_grouper_says_how() -> None:
    builder = StreamsBuilder()
    builder.stream("left").join(builder.table("right"), lambda one, other: one).to("out")
    topology = builder.build()
    with pytest.raises(ConfigurationError, match="left has 2, right has 1"):
        plan(topology, {"left": 2, "right": 1})

    def together(partitions: Any) -> list[set[TopicPartition]]:
        return [{TopicPartition(t, n) for t, count in partitions.items() for n in range(count)}]

    (part,) = plan(topology, {"left": 2, "right": 1}, grouper=together).parts.values()
    assert part.tasks == ({"left": (0, 1), "right": (0,)},)


def test_a_repartition_has_as_many_partitions_as_what_it_is_joined_with() -> None:
    builder = StreamsBuilder()
    rekeyed = builder.stream("in").select_key(lambda key, value: value)
    rekeyed.join(builder.table("rows"), lambda one, other: one).to("out")
    made = plan(builder.build(), {"in": 2, "rows": 5})
    assert [one.partitions for one in made.repartitions.values()] == [5]


def test_a_repartition_has_as_many_partitions_as_it_says_or_as_what_it_comes_of() -> None:
    builder = StreamsBuilder()
    builder.stream("in").repartition(Repartitioned(partitions=7)).to("seven")
    builder.stream("other").group_by(lambda key, value: value).count().to_stream().to("out")
    made = plan(builder.build(), {"in": 2, "other": 3})
    assert sorted(one.partitions for one in made.repartitions.values()) == [3, 7]


def test_a_new_partition_joins_the_task_of_its_number() -> None:
    builder = StreamsBuilder()
    builder.stream("in").group_by_key().count().to_stream().to("out")
    (part,) = plan(builder.build(), {"in": 2}).parts.values()
    assert [part.task_of("in", partition) for partition in range(5)] == [0, 1, 0, 1, 0]


def test_a_record_is_repartitioned_to_where_a_topic_with_its_key_has_it() -> None:
    builder = StreamsBuilder()
    builder.stream("in").group_by(
        lambda key, value: value, Grouped(key_serde=Serdes.long())
    ).count().to_stream().to("out")
    (one,) = plan(builder.build(), {"in": 4}).repartitions.values()
    route = one.router()
    assert {route(key, None)[0] for key in range(100)} == {0, 1, 2, 3}
    for key in range(100):
        assert route(key, None)[0] == partition_of(Serdes.long().dumps(key), 4)


@pytest.mark.parametrize("serde", [None, Serdes.json(), Serdes.long()])
def test_keys_travel_alike_in_a_plan_that_was_sent_to_a_worker(serde: Serde[Any] | None) -> None:
    builder = StreamsBuilder()
    grouped: Grouped[Any, Any] = Grouped(key_serde=serde)
    builder.stream("in").group_by(lambda key, value: value, grouped).count()
    (one,) = plan(builder.build(), {"in": 4}).repartitions.values()
    sent: Repartition = pickle.loads(pickle.dumps(one))  # noqa: S301 what was just written
    keys: list[Any] = [1, 2] if serde == Serdes.long() else [[1], (1, 2), {"a": 1}, "a", 1, True]
    for key in keys:
        assert sent.router()(key, None) == one.router()(key, None)


@pytest.mark.parametrize("partitions", [1, 4])
def test_a_key_that_its_serde_cannot_write_has_no_partition(partitions: int) -> None:
    builder = StreamsBuilder()
    builder.stream("in").group_by(
        lambda key, value: value, Grouped(key_serde=Serdes.long())
    ).count().to_stream().to("out")
    (one,) = plan(builder.build(), {"in": partitions}).repartitions.values()
    with pytest.raises(SerializationError, match="a key of type str cannot be written as long"):
        one.router()("no number", None)


def test_topics_outside_get_the_serdes_of_the_application_where_they_have_none() -> None:
    builder = StreamsBuilder()
    builder.stream("in", Consumed(value_serde=Serdes.long())).group_by(
        lambda key, value: str(value)
    ).count().to_stream().to("out")
    made = plan(builder.build(), {"in": 1}, key_serde=Serdes.json())
    source = next(
        node
        for node in made.topology.nodes.values()
        if isinstance(node, Source) and not node.internal
    )
    assert source.key_serde is not None
    assert source.value_serde is not None
    assert (source.key_serde.name, source.value_serde.name) == (
        Serdes.json().name,
        Serdes.long().name,
    )
    inner = [node for node in sinks(made) if node.internal]
    assert [node.key_serde for node in inner] == [Serdes.json()]


def test_windowed_keys_are_written_as_kafka_does() -> None:
    builder = StreamsBuilder()
    windows = builder.stream("in").group_by_key().windowed_by(TimeWindows.of("1 s"))
    windows.count().to_stream().to("out")
    (sink,) = sinks(plan(builder.build(), {"in": 1}))
    assert sink.key_serde is not None
    key = Windowed("a", Window(1000, 2000))
    assert sink.key_serde.dumps(key) == b"a" + (1000).to_bytes(8, "big")
    assert sink.key_serde.loads(sink.key_serde.dumps(key)) == key
    assert sink.key_serde.dumps("plain") == b"plain"
