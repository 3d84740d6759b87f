"""Random batches and partitions in the test driver."""

from collections import Counter, defaultdict
from typing import Any

import pytest

from thulawa.errors import (
    ConfigurationError,
    SerializationError,
)
from thulawa.runtime.task import Task
from thulawa.runtime.task_options import TaskOptions
from thulawa.streams import (
    AsyncProcessor,
    Consumed,
    JoinWindows,
    Materialized,
    Processor,
    Record,
    Serdes,
    StoreSpec,
    StreamsBuilder,
    TimeWindows,
    Window,
    Windowed,
)
from thulawa.testing import TopologyTestDriver, seeds
from thulawa.topology.topology import Topology

VISITS = [(f"v{n}", {"page": f"p{n * n % 7}"}) for n in range(60)]


def counts_by_page(name: str = "counts") -> Topology:
    builder = StreamsBuilder()
    pages = builder.stream("visits").group_by(lambda _, visit: visit["page"])
    pages.count(Materialized.as_(name)).to_stream().to("out")
    return builder.build()


@pytest.mark.parametrize("seed", seeds(20))
def test_every_seed_gives_each_key_its_updates_in_order(seed: int) -> None:
    with TopologyTestDriver(counts_by_page(), partitions=4, batches=seed) as driver:
        driver.create_input_topic("visits").pipe_key_value_list(VISITS)
        counts = driver.create_output_topic("out").read_values_by_key()
        store = driver.get_key_value_store("counts")
        expected = Counter(visit["page"] for _, visit in VISITS)
        assert counts == {page: list(range(1, n + 1)) for page, n in expected.items()}
        assert dict(store.all()) == expected
        assert {page: store.get(page) for page in expected} == expected


def order_of_outputs(seed: int, partitions: int = 4) -> list[Any]:
    driver = TopologyTestDriver(counts_by_page(), partitions=partitions, batches=seed)
    with driver:
        driver.create_input_topic("visits").pipe_key_value_list(VISITS)
        return driver.create_output_topic("out").read_key_values_to_list()


def test_a_seed_gives_the_same_run_again_and_others_give_others() -> None:
    runs = [order_of_outputs(seed) for seed in range(5)]
    assert runs == [order_of_outputs(seed) for seed in range(5)]
    assert len({str(run) for run in runs}) == 5


class Batches(Processor[Any, Any, Any, Any]):
    """Notes the records that are processed between two commits, by stream time punctuation."""

    seen: list[tuple[str, Any]]

    def process(self, record: Record[Any, Any]) -> None:
        metadata = self.context.record_metadata
        assert metadata is not None
        self.seen.append((metadata.topic, record.value))


def test_a_batch_holds_records_of_several_topics_in_any_order_of_arrival() -> None:
    options = TaskOptions(max_task_idle=None)  # else the topics meet in the order of their time
    Batches.seen = []
    builder = StreamsBuilder()
    builder.stream("a").merge(builder.stream("b")).process(Batches)
    orders = set()
    for seed in range(20):
        Batches.seen = []
        with TopologyTestDriver(builder.build(), batches=seed, options=options) as driver:
            driver.create_input_topic("a").pipe_key_value_list([("k", n) for n in range(10)])
            driver.create_input_topic("b").pipe_key_value_list([("k", n) for n in range(10)])
            assert Batches.seen == []  # nothing is processed before it is asked for
            driver.process_all_available()
        assert sorted(Batches.seen) == [(topic, n) for topic in "ab" for n in range(10)]
        for topic in "ab":
            assert [n for name, n in Batches.seen if name == topic] == list(range(10))
        orders.add(tuple(topic for topic, _ in Batches.seen))
    assert len(orders) > 5


def test_a_table_comes_before_the_stream_that_is_joined_with_it() -> None:
    builder = StreamsBuilder()
    users = builder.table("users")
    builder.stream("clicks").left_join(users, lambda click, user: user).to("out")

    def unmatched(batches: int | None, options: TaskOptions | None = None) -> int:
        with TopologyTestDriver(builder.build(), batches=batches, options=options) as driver:
            names = [f"u{n}" for n in range(50)]
            driver.create_input_topic("users").pipe_key_value_list(
                [(name, "known") for name in names]
            )
            driver.create_input_topic("clicks").pipe_key_value_list(
                [(name, "click") for name in names], start=10
            )
            return driver.create_output_topic("out").read_values_to_list().count(None)

    assert unmatched(None) == 0
    assert not any(unmatched(seed) for seed in range(20))
    assert any(unmatched(seed, TaskOptions(max_task_idle=None)) for seed in range(10))


@pytest.mark.parametrize("operation", ["map_values", "process"])
def test_async_calls_finish_out_of_order_but_each_key_in_order(operation: str) -> None:
    builder = StreamsBuilder()

    async def tagged(value: int) -> int:
        return value

    class Tagged(AsyncProcessor[Any, Any, Any, Any]):
        async def process(self, record: Record[Any, Any]) -> None:
            self.context.forward(record)

    stream = builder.stream("in")
    if operation == "process":
        stream.process_async(Tagged, in_flight=16).to("out")
    else:
        stream.map_values_async(tagged, in_flight=16).to("out")
    swapped = 0
    for seed in range(10):
        with TopologyTestDriver(builder.build(), batches=seed) as driver:
            pairs = [(f"k{n % 8}", n) for n in range(64)]
            driver.create_input_topic("in").pipe_key_value_list(pairs)
            found = driver.create_output_topic("out").read_key_values_to_list()
        assert sorted(found) == sorted(pairs)
        by_key = defaultdict(list)
        for key, value in found:
            by_key[key].append(value)
        assert all(values == sorted(values) for values in by_key.values())
        swapped += found != pairs
    assert swapped == 10


@pytest.mark.parametrize("seed", seeds(10))
def test_a_restart_between_batches_loses_and_doubles_nothing(seed: int) -> None:
    with TopologyTestDriver(counts_by_page(), partitions=3, batches=seed) as driver:
        topic = driver.create_input_topic("visits")
        for at in range(0, len(VISITS), 10):
            topic.pipe_key_value_list(VISITS[at : at + 10])
            driver.restart()
        counts = driver.create_output_topic("out").read_key_values_to_map()
    assert counts == Counter(visit["page"] for _, visit in VISITS)


@pytest.mark.parametrize("batches", [None, 3])
def test_repartition_and_changelog_topics_are_read_by_their_names(batches: int | None) -> None:
    inner = "counts-repartition"
    with TopologyTestDriver(counts_by_page(), partitions=2, batches=batches) as driver:
        topic = driver.create_input_topic("visits")
        topic.pipe_input("v1", {"page": "home"}, 7)
        topic.pipe_input("v2", {"page": "home"}, 9)
        repartition = driver.create_output_topic(inner)
        assert repartition.read_record() == Record("home", {"page": "home"}, 7)
        changes = driver.create_output_topic("counts-changelog").read_records_to_list()
        assert changes == [Record("home", 1, 7), Record("home", 2, 9)]
        assert driver.produced_topic_names() == {inner, "counts-changelog", "out"}
        with pytest.raises(ConfigurationError, match="remove the serdes"):
            driver.create_output_topic(inner, Serdes.string())


def test_changelogs_of_windows_have_windowed_keys_and_deletions_are_nulls() -> None:
    builder = StreamsBuilder()
    table = builder.table("rows", materialized=Materialized.as_("rows"))
    table.to_stream().to("out")
    windows = builder.stream("in").group_by_key().windowed_by(TimeWindows.of(10))
    windows.count(Materialized.as_("windows"))
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("rows").pipe_key_value_list([("a", 1), ("a", None)], 5, 1)
        driver.create_input_topic("in").pipe_input("k", "v", 12)
        rows = driver.create_output_topic("rows-changelog").read_records_to_list()
        assert rows == [Record("a", 1, 5), Record("a", None, 6)]
        record = driver.create_output_topic("windows-changelog").read_record()
        assert record == Record(Windowed("k", Window(10, 20)), 1, 12)


def test_a_store_that_is_not_by_key_is_read_task_by_task() -> None:
    class Total(Processor[Any, Any, Any, Any]):
        def process(self, record: Record[Any, Any]) -> None:
            store = self.context.state_store("total")
            store.put("all", (store.get("all") or 0) + 1)

    builder = StreamsBuilder()
    builder.add_state_store(StoreSpec(name="total"))
    builder.stream("in").process(Total, "total")
    with TopologyTestDriver(builder.build(), partitions=2) as driver:
        driver.create_input_topic("in").pipe_key_value_list([(f"k{n}", n) for n in range(10)])
        with pytest.raises(ConfigurationError, match="tasks 0 and 1 both have the key 'all'"):
            driver.get_key_value_store("total")
        parts = [driver.get_key_value_store("total", task).get("all") for task in range(2)]
        assert sum(parts) == 10


def test_values_that_no_shuffle_carries_are_refused_as_on_spark() -> None:
    class Odd:
        pass

    builder = StreamsBuilder()
    builder.stream("in").map(lambda k, v: (v, Odd())).group_by_key().count().to_stream().to("out")
    driver = TopologyTestDriver(builder.build())
    with driver, pytest.raises(SerializationError, match="Odd cannot be stored or shuffled"):
        driver.create_input_topic("in").pipe_input("k", "v")


def test_an_error_in_a_batch_names_the_seed() -> None:
    builder = StreamsBuilder()
    builder.stream("in", Consumed(value_serde=Serdes.long())).to("out")
    driver = TopologyTestDriver(builder.build(), batches=7)
    driver.create_input_topic("in").pipe_input("k", b"short")
    with pytest.raises(SerializationError) as caught:
        driver.process_all_available()
    driver.close()
    assert "batches=7 repeats the same batches" in caught.value.__notes__[0]


@pytest.mark.parametrize("seed", seeds(10))
def test_what_waits_is_processed_before_the_clock_moves_and_at_the_end(seed: int) -> None:
    seen: list[str] = []
    builder = StreamsBuilder()
    left, right = builder.stream("l"), builder.stream("r")
    left.join(right, lambda a, b: a + b, JoinWindows.of("1 minute")).foreach(
        lambda _, value: seen.append(value)
    )
    with TopologyTestDriver(builder.build(), partitions=2, batches=seed) as driver:
        driver.create_input_topic("l").pipe_input("k", "A")
        driver.create_input_topic("r").pipe_input("k", "B")
        driver.advance_wall_clock_time("1 s")
        assert seen == ["AB"]
        driver.create_input_topic("r").pipe_input("k", "C")
    assert seen == ["AB", "AC"]


@pytest.mark.parametrize("seed", seeds(20))
def test_a_batch_of_several_tasks_is_merged_by_time_behind_a_shuffle(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[list[int]] = []
    run = Task.run

    def counted(task: Task) -> None:
        runs.append([])
        run(task)

    class Noting(Processor[str, int, str, int]):
        def process(self, record: Record[str, int]) -> None:
            runs[-1].append(record.timestamp)

    builder = StreamsBuilder()
    builder.stream("in").select_key(lambda _, n: str(n % 5)).repartition().process(Noting)
    with TopologyTestDriver(builder.build(), partitions=3, batches=seed) as driver:
        monkeypatch.setattr(Task, "run", counted)
        topic = driver.create_input_topic("in")
        for time in range(300):
            topic.pipe_input(f"k{time % 17}", time, time)
    assert sum(map(len, runs)) == 300
    assert any(len(times) > 20 for times in runs)
    assert [times for times in runs if times != sorted(times)] == []
