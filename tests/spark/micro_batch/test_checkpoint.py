"""Where state is stays where it is: over restarts, new partitions, and added tasks."""

import json
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

from thulawa.core.records import Window, Windowed
from thulawa.errors import (
    ConfigurationError,
    StateError,
)
from thulawa.runtime.partition_groups import PartitionGrouper, TopicPartition, by_number
from thulawa.runtime.planning import Plan, plan
from thulawa.spark.micro_batch.checkpoint import Checkpoint
from thulawa.spark.micro_batch.interactive_queries import ReadOnlyStore, read_store
from thulawa.spark.micro_batch.program import Program
from thulawa.state.window_stores import SessionStore, WindowStore
from thulawa.streams import Materialized, Repartitioned, StreamsBuilder, Topology


def counting(*, more: bool = False, partitions: int | None = None) -> Topology:
    """Count per key, and behind a repartition; with ``more`` also another topic."""
    builder = StreamsBuilder()
    visits = builder.stream("visits")
    visits.group_by_key().count(Materialized.as_("per-visitor"))
    pages = visits.select_key(lambda key, value: value)
    by_page = pages.repartition(Repartitioned(name="pages", partitions=partitions))
    by_page.group_by_key().count(Materialized.as_("per-page"))
    if more:
        builder.stream("orders").group_by_key().count(Materialized.as_("per-order"))
    return builder.build()


class Application:
    """What `Streams` does with its checkpoint, without Spark."""

    def __init__(self, folder: Path) -> None:
        self.checkpoint = Checkpoint(str(folder))

    def start(
        self,
        topology: Topology,
        grouper: PartitionGrouper = by_number,
        *,
        allow_state_loss: bool = False,
        has_timers: bool = False,
        **counts: int,
    ) -> tuple[Plan, Program]:
        assigned = self.checkpoint.assignment()
        made = plan(topology, counts, grouper=grouper, assigned=assigned)
        program = Program("app", "app/1", made, had_timers=has_timers)
        return made, self.checkpoint.accept(program, allow_state_loss=allow_state_loss)


def tasks_of(made: Plan, store: str) -> list[dict[str, tuple[int, ...]]]:
    (part,) = [part for part in made.parts.values() if store in part.group.stores]
    return [dict(task) for task in part.tasks]


def test_a_new_partition_would_lose_the_state_of_keys_that_move_there(tmp_path: Path) -> None:
    application = Application(tmp_path)
    application.start(counting(), visits=2)
    for _ in range(2):
        with pytest.raises(StateError) as refused:
            application.start(counting(), visits=3)
    said = str(refused.value)
    assert "partition 2 of 'visits' is new" in said
    assert "'per-visitor'" in said
    assert "allow_state_loss=True" in said
    application.start(counting(), visits=2)


def test_a_new_partition_is_no_matter_where_there_is_no_state_or_a_repartition_before_it(
    tmp_path: Path,
) -> None:
    builder = StreamsBuilder()
    visits = builder.stream("visits")
    visits.to("copied")
    visits.group_by(lambda key, value: value).count(Materialized.as_("per-page"))
    application = Application(tmp_path)
    application.start(builder.build(), visits=2)
    made, _ = application.start(builder.build(), visits=3)
    assert len(tasks_of(made, "per-page")) == 2


def test_a_new_partition_joins_a_task_there_is_and_repartitions_keep_their_size(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    application = Application(tmp_path)
    _, before = application.start(counting(), visits=2)
    grown, after = application.start(counting(), visits=5, allow_state_loss=True)
    assert "partition 4 of 'visits' is new" in caplog.text
    assert after.prefixes == before.prefixes, "keys that have not moved keep their state"
    assert tasks_of(grown, "per-visitor") == [{"visits": (0, 2, 4)}, {"visits": (1, 3)}]
    assert [one.partitions for one in grown.repartitions.values()] == [2]
    assert len(tasks_of(grown, "per-page")) == 2
    again, _ = application.start(counting(), visits=5)
    assert tasks_of(again, "per-visitor") == tasks_of(grown, "per-visitor")


def test_a_grouper_that_changes_its_mind_does_not_move_state(tmp_path: Path) -> None:
    def crossed(counts: object) -> list[set[TopicPartition]]:
        return [{TopicPartition("visits", 1)}, {TopicPartition("visits", 0)}]

    application = Application(tmp_path)
    topology = StreamsBuilder()
    topology.stream("visits").group_by_key().count(Materialized.as_("per-visitor"))
    application.start(topology.build(), grouper=crossed, visits=2)
    made, _ = application.start(topology.build(), visits=2)
    assert tasks_of(made, "per-visitor") == [{"visits": (1,)}, {"visits": (0,)}]


def test_tasks_that_are_added_do_not_move_the_slots_of_others(tmp_path: Path) -> None:
    application = Application(tmp_path)
    made, placement = application.start(counting(), visits=2)
    before = Program("app", "app/1", made, width=placement.width)
    wider, placement = application.start(counting(more=True), visits=2, orders=3)
    after = Program("app", "app/2", wider, width=placement.width)
    assert wider.tasks == 3
    assert [after.slot_of(task) for task in (0, 1)] == [before.slot_of(task) for task in (0, 1)]
    assert after.slot_of(2) == after.slot_of(0)


def test_a_repartition_of_another_size_would_lose_state(tmp_path: Path) -> None:
    application = Application(tmp_path)
    application.start(counting(), visits=2)
    with pytest.raises(StateError, match="'pages-repartition' had 2 partitions, now 4"):
        application.start(counting(partitions=4), visits=2)


@pytest.mark.parametrize("path", ["s3a://bucket/app", "hdfs://host:8020/app", "dbfs:/app"])
def test_a_checkpoint_that_is_no_local_folder_is_refused(path: str) -> None:
    with pytest.raises(ConfigurationError, match="local folder"):
        Checkpoint(path)


@pytest.mark.parametrize("path", ["file:/tmp/app", "file:///tmp/app", "/tmp/app"])  # noqa: S108
def test_a_local_folder_may_be_named_as_a_file(path: str) -> None:
    assert Checkpoint(path).root == Path("/tmp/app")  # noqa: S108


def test_timers_come_to_a_program_with_another_query_and_stay(tmp_path: Path) -> None:
    application = Application(tmp_path)
    _, without = application.start(counting(), visits=2)
    assert not without.has_timers
    with pytest.raises(StateError, match=r"no timers and now has some \(process, or max_task_idle"):
        application.start(counting(), has_timers=True, visits=2)
    first = application.checkpoint.query_path
    application.start(counting(), has_timers=True, allow_state_loss=True, visits=2)
    assert application.checkpoint.query_path != first
    made, kept = application.start(counting(), visits=2)
    program = Program("app", "app/1", made, had_timers=kept.has_timers)
    assert program.has_timers
    assert program.clock_topic in program.topics


def test_a_program_without_stages_may_get_timers(tmp_path: Path) -> None:
    builder = StreamsBuilder()
    builder.stream("visits").to("copied")
    application = Application(tmp_path)
    application.start(builder.build(), visits=2)
    _, placement = application.start(builder.build(), has_timers=True, visits=2)
    assert placement.has_timers


def test_a_topic_that_is_taken_out_and_put_back_is_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def copying(*topics: str) -> Topology:
        builder = StreamsBuilder()
        for topic in topics:
            builder.stream(topic).to("copied")
        return builder.build()

    application = Application(tmp_path)
    application.start(copying("visits", "orders"), visits=1, orders=1)
    application.start(copying("visits"), visits=1)
    application.start(copying("visits"), visits=1)
    assert not caplog.messages
    application.start(copying("visits", "orders"), visits=1, orders=1)
    assert [message for message in caplog.messages if "read 'orders' before" in message]
    caplog.clear()
    application.start(copying("visits", "orders"), visits=1, orders=1)
    assert not caplog.messages


def test_a_checkpoint_of_another_version_is_refused(tmp_path: Path) -> None:
    application = Application(tmp_path)
    application.start(counting(), visits=2)
    file = tmp_path / "application.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 1}))
    with pytest.raises(StateError, match="another version of Thulawa"):
        application.start(counting(), visits=2)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("names", "'names' is that of a global table, .*read its topic 'people'"),
        ("other", r"there is no store 'other'; there are \['counts'\]"),
    ],
)
def test_a_store_that_cannot_be_looked_into_is_refused(
    tmp_path: Path, name: str, reason: str
) -> None:
    builder = StreamsBuilder()
    names = builder.global_table("people", materialized=Materialized.as_("names"))
    joined = builder.stream("in").join(names, lambda key, value: key, lambda one, other: one)
    joined.group_by_key().count(Materialized.as_("counts"))
    made, checkpoint = plan(builder.build(), {"in": 1}), Checkpoint(str(tmp_path))
    with pytest.raises(ConfigurationError, match=reason):
        read_store(cast("SparkSession", None), checkpoint, made, name)


def test_a_window_or_a_session_is_looked_up_by_its_own_key() -> None:
    windows = WindowStore("w", {}, size=10, retention=100)
    windows.put("k", 3, start=10, timestamp=12)
    sessions = SessionStore("s", {}, retention=100)
    sessions.put("k", Window(5, 9), 2)
    for store, window, value in ((windows, Window(10, 20), 3), (sessions, Window(5, 9), 2)):
        found = ReadOnlyStore(store.name, {0: store})
        assert found.get(Windowed("k", window)) == value
        assert found.get(Windowed("k", Window(0, 1))) is None
        assert list(found.all()) == [(Windowed("k", window), value)]
        with pytest.raises(ConfigurationError, match="has windows: get"):
            found.get("k")
