"""The task: which record is next, stream time, partitions, caching."""

import json
from collections import defaultdict
from typing import Any

import pytest

from thulawa.core.serdes import Serdes
from thulawa.errors import ConfigurationError
from thulawa.runtime.punctuation import Punctuations
from thulawa.runtime.task import Task
from thulawa.runtime.task_options import TaskOptions
from thulawa.streams import (
    Consumed,
    Materialized,
    Processor,
    Record,
    StreamsBuilder,
    TimeWindows,
    Topology,
)
from thulawa.testing import TopologyTestDriver, preview


class Log:
    """A collector that remembers."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []

    def send(self, sink: Any, topic: str, key: Any, value: Any, timestamp: int, _: Any) -> None:
        self.sent.append((topic, key, value, timestamp))


def merged_topics() -> Topology:
    builder = StreamsBuilder()
    builder.stream("b").merge(builder.stream("a")).to("out")
    return builder.build()


def test_the_lowest_head_goes_first_and_ties_go_by_topic() -> None:
    topology, log = merged_topics(), Log()
    task = Task(topology.subtopologies()[0], topology, log)
    task.add("b", 0, [(0, 5, "b", 1, ()), (1, 1, "b", 2, ()), (9, 7, "b", 3, ())])
    task.add("a", 0, [(3, 5, "a", 1, ()), (4, 6, "a", 2, ())])
    task.run()
    assert [(key, value) for _, key, value, _ in log.sent] == [
        ("a", 1),  # 5, topic a before b
        ("b", 1),  # 5
        ("b", 2),  # 1: late, but the head of its partition
        ("a", 2),  # 6
        ("b", 3),  # 7, after a gap in offsets
    ]
    assert task.context.stream_time == 7


def test_one_partition_and_several_give_the_same() -> None:
    topology = merged_topics()
    alone, together = Log(), Log()
    records = [(n, n * 7919 % 50, "k", n, ()) for n in range(100)]
    one = Task(topology.subtopologies()[0], topology, alone)
    one.add("a", 0, records)
    one.run()
    two = Task(topology.subtopologies()[0], topology, together)
    two.add("a", 0, records)
    two.add("b", 0, [(0, 1000, "k", "last", ())])
    two.run()
    assert together.sent[:-1] == alone.sent


def test_every_partition_has_its_own_task_and_state() -> None:
    builder = StreamsBuilder()
    counts = builder.stream("in").group_by(lambda k, v: v).count(Materialized.as_("counts"))
    counts.to_stream().to("out")
    with TopologyTestDriver(builder.build(), partitions=3) as driver:
        words = [f"w{n % 10}" for n in range(100)]
        driver.create_input_topic("in").pipe_key_value_list(
            (str(n), word) for n, word in enumerate(words)
        )
        last = driver.create_output_topic("out").read_key_values_to_map()
        stores = [driver.get_key_value_store("counts", task) for task in range(3)]
        whole = driver.get_key_value_store("counts")
    assert last == {f"w{n}": 10 for n in range(10)} == dict(whole.all())
    assert whole.get("w3") == 10
    with pytest.raises(ConfigurationError, match="over several tasks"):
        whole.put("w3", 11)
    held: dict[str, int] = defaultdict(int)
    for store in stores:
        for word, count in store.all():
            held[word] += count
    assert dict(held) == last
    assert sum(1 for store in stores if len(store)) > 1


def test_joins_work_across_partitions() -> None:
    builder = StreamsBuilder()
    users, orders = builder.table("users"), builder.table("orders")
    orders.join(users, lambda o, u: (o, u), foreign_key=lambda o: o).to_stream().to("out")
    driver = TopologyTestDriver(builder.build(), partitions=4, key_serde=Serdes.json())
    with driver:
        people = [f"user{n}" for n in range(10)]
        driver.create_input_topic("users").pipe_key_value_list([(p, p.upper()) for p in people])
        pairs = [(n, people[n % 10]) for n in range(40)]
        driver.create_input_topic("orders").pipe_key_value_list(pairs)
        found = driver.create_output_topic("out").read_key_values_to_map()
    assert found == {n: [p, p.upper()] for n, p in pairs}


def test_a_cache_sends_the_last_update_of_each_key_per_commit() -> None:
    def counted(stream: Any) -> Any:
        words = stream.flat_map(lambda k, v: [(word, 1) for word in v.split()])
        return words.group_by_key().count(Materialized(caching=True))

    assert preview(counted, (None, "a b a"), (None, "b")) == [
        ("a", 1),
        ("b", 1),
        ("a", 2),
        ("b", 2),
    ]

    def in_place(stream: Any) -> Any:
        return stream.group_by_key().count(Materialized(caching=True))

    builder = StreamsBuilder()
    in_place(builder.stream("in")).to_stream().to("out")
    topology, log = builder.build(), Log()
    task = Task(topology.subtopologies()[0], topology, log)
    task.add("in", 0, [(n, n, "k", 1, ()) for n in range(5)])
    task.run()
    assert [value for _, _, value, _ in log.sent] == [1, 2, 3, 4, 5]
    once = Log()
    task = Task(topology.subtopologies()[0], topology, once, options=TaskOptions(commit="batch"))
    task.add("in", 0, [(n, n, f"k{n % 2}", 1, ()) for n in range(5)])
    task.run()
    assert [(key, value) for _, key, value, _ in once.sent] == [("k1", 2), ("k0", 3)]


def test_a_cache_behind_a_cache_sends_with_the_same_commit() -> None:
    builder = StreamsBuilder()
    counted = builder.stream("in").group_by_key().count(Materialized(caching=True))
    highest = counted.to_stream().group_by_key().reduce(max, Materialized(caching=True))
    highest.to_stream().to("out")
    topology, log = builder.build(), Log()
    task = Task(topology.subtopologies()[0], topology, log, options=TaskOptions(commit="batch"))
    task.add("in", 0, [(n, n, "k", 1, ()) for n in range(5)])
    task.run()
    assert log.sent == [("out", "k", 5, 4)]


def test_what_a_cache_sends_on_to_an_async_node_leaves_with_the_same_commit() -> None:
    async def doubled(value: int) -> int:
        return 2 * value

    builder = StreamsBuilder()
    counted = builder.stream("in").group_by_key().count(Materialized(caching=True))
    counted.to_stream().map_values_async(doubled).to("out")
    with TopologyTestDriver(builder.build(), options=TaskOptions(commit="batch")) as driver:
        driver.create_input_topic("in").pipe_input("k", 1, 0)
        assert driver.create_output_topic("out").read_key_values_to_list() == [("k", 2)]


def test_a_topic_may_be_written_and_read_by_one_program() -> None:
    builder = StreamsBuilder()
    builder.stream("in").filter(lambda k, v: v > 0).map_values(lambda v: v - 1).to("in")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in").pipe_input("k", 3)
        assert driver.create_output_topic("in").read_values_to_list() == [2, 1, 0]


def test_an_async_node_needs_a_host_that_runs_coroutines() -> None:
    async def same(value: Any) -> Any:
        return value

    builder = StreamsBuilder()
    builder.stream("in").map_values_async(same).to("out")
    topology = builder.build()
    with pytest.raises(ConfigurationError, match="needs run_async"):
        Task(topology.subtopologies()[0], topology, Log())


def test_a_timestamp_extractor_decides_about_time() -> None:
    consumed: Consumed[Any, Any] = Consumed(
        timestamp_extractor=lambda timestamp, key, value, partition_time: value["at"]
    )
    builder = StreamsBuilder()
    windows = builder.stream("in", consumed).group_by_key().windowed_by(TimeWindows.of(10))
    windows.count().to_stream(lambda w, n: str(w.window.start)).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in").pipe_input("k", {"at": 25}, 99_999)
        out = driver.create_output_topic("out").read_record()
    assert out == Record("20", 1, 25)


def test_a_snapshot_is_plain_data() -> None:
    builder = StreamsBuilder()
    windows = builder.stream("in").group_by_key().windowed_by(TimeWindows.of(10))
    windows.count().to_stream().to("out")
    topology, log = builder.build(), Log()
    task = Task(topology.subtopologies()[0], topology, log)
    task.add("in", 0, [(0, 25, "k", 1, ())])
    task.run()
    snapshot = json.loads(json.dumps(task.snapshot()))
    again = Task(topology.subtopologies()[0], topology, log, snapshot=snapshot)
    assert again.context.stream_time == 25
    again.add("in", 0, [(1, 3, "k", 1, ())])
    again.run()
    assert len(log.sent) == 1  # too late, which only the clock in the snapshot can tell


def test_a_restarted_punctuation_goes_on_where_it_was() -> None:
    fired: list[int] = []

    class Punctual(Processor[Any, Any, Any, Any]):
        def init(self, context: Any) -> None:
            context.schedule(10, "stream_time", fired.append)
            context.schedule(100, "wall_clock_time", fired.append)

        def process(self, record: Any) -> None: ...

    topology = Topology().add_source("in", "in").add_processor("p", Punctual, "in")
    with TopologyTestDriver(topology) as driver:
        topic = driver.create_input_topic("in")
        topic.pipe_input("k", 1, 15)
        driver.restart()
        topic.pipe_input("k", 1, 16)
        topic.pipe_input("k", 1, 20)
        driver.advance_wall_clock_time(60)
        driver.restart()
        driver.advance_wall_clock_time(60)
    assert fired == [15, 20, 120]


def scheduling(every: int, fired: list[int], *, once: bool = False) -> Topology:
    class Punctual(Processor[Any, Any, Any, Any]):
        def init(self, context: Any) -> None:
            self.schedule = context.schedule(every, "wall_clock_time", self.fire)

        def fire(self, now: int) -> None:
            fired.append(now)
            if once:
                self.schedule.cancel()

        def process(self, record: Any) -> None: ...

    return Topology().add_source("in", "in").add_processor("p", Punctual, "in")


def task_of(topology: Topology, now: int, snapshot: Any = None) -> Task:
    (group,) = topology.subtopologies()
    return Task(group, topology, Log(), wall_clock_time=now, snapshot=snapshot)


def test_a_cancelled_punctuation_does_not_come_back_with_a_restart() -> None:
    fired: list[int] = []
    topology = scheduling(10, fired, once=True)
    task = task_of(topology, 0)
    task.advance_wall_clock(10)
    for now in (20, 30):
        task = task_of(topology, now, task.snapshot())
        task.advance_wall_clock(now + 10)
    assert fired == [10]
    assert task.next_wall_clock_time is None


def test_a_punctuation_with_another_interval_does_not_wait_for_the_old_time() -> None:
    fired: list[int] = []
    before = task_of(scheduling(86_400_000, fired), 0)
    after = task_of(scheduling(1_000, fired), 5, before.snapshot())
    assert after.next_wall_clock_time == 1_005


def test_punctuations_that_are_asked_for_and_cancelled_leave_nothing_behind() -> None:
    punctuations = Punctuations()
    punctuations.resume({})
    kept = punctuations.add(1_000, "wall_clock_time", print, 0, "p")
    for now in range(100):
        punctuations.add(500, "wall_clock_time", print, now, "p").cancel()
    assert punctuations.next_wall_clock_time == 1_000
    assert len(punctuations) == 1
    assert not kept.cancelled


def test_what_a_processor_sends_to_a_topic_that_is_read_is_processed() -> None:
    class Echo(Processor[Any, Any, Any, Any]):
        def process(self, record: Record[Any, Any]) -> None:
            self.context.send("second", record.key, record.value + 1, record.timestamp)

    topology = Topology().add_source("a", "first").add_processor("p", Echo, "a")
    topology.add_source("b", "second").add_sink("out", "out", "b")
    with TopologyTestDriver(topology) as driver:
        driver.create_input_topic("first").pipe_input("k", 1)
        assert driver.create_output_topic("out").read_values_to_list() == [2]


def test_a_program_may_fill_its_own_global_table() -> None:
    builder = StreamsBuilder()
    rates = builder.global_table("rates")
    builder.stream("changes").map_values(lambda v: v * 10).to("rates")
    builder.stream("in").join(rates, lambda k, v: v, lambda v, rate: (v, rate)).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("changes").pipe_input("usd", 3)
        driver.create_input_topic("in").pipe_input("k", "usd")
        assert driver.create_output_topic("out").read_value() == ["usd", 30]


def idle(options: TaskOptions, snapshot: Any = None) -> tuple[Task, Log]:
    topology, log = merged_topics(), Log()
    (group,) = topology.subtopologies()
    return Task(group, topology, log, options=options, snapshot=snapshot), log


IDLE = TaskOptions(max_task_idle=100, commit="batch")


def test_a_task_waits_for_a_partition_that_has_no_records_and_takes_them_in_order() -> None:
    task, log = idle(IDLE)
    task.add("a", 0, [(0, 10, "k", "late", ())])
    task.run()
    assert log.sent == []
    assert task.next_wall_clock_time == 100
    task.add("b", 0, [(0, 5, "k", "early", ()), (1, 20, "k", "after", ())])
    task.run()
    assert [value for _, _, value, _ in log.sent] == ["early", "late"]


def test_a_task_waits_no_longer_than_it_may() -> None:
    task, log = idle(IDLE)
    task.add("a", 0, [(0, 10, "k", "one", ())])
    task.run()
    task.advance_wall_clock(99)
    assert log.sent == []
    task.advance_wall_clock(100)
    assert [value for _, _, value, _ in log.sent] == ["one"]
    assert task.next_wall_clock_time is None
    task.add("a", 0, [(1, 11, "k", "two", ())])
    task.run()
    assert [value for _, _, value, _ in log.sent] == ["one", "two"]


def test_records_that_wait_are_kept_with_the_tasks_state() -> None:
    task, _ = idle(IDLE)
    task.add("a", 0, [(0, 10, "k", "one", (("h", b"x"),)), (1, 11, "k", "two", ())])
    task.run()
    again, log = idle(IDLE, task.snapshot())
    assert again.next_wall_clock_time == 100
    again.add("b", 0, [(0, 99, "k", "three", ())])
    again.run()
    assert [value for _, _, value, _ in log.sent] == ["one", "two"]


def values(log: Log) -> list[object]:
    return [value for _, _, value, _ in log.sent]


def test_a_task_waits_for_a_partition_that_has_more_at_the_broker_and_for_no_other() -> None:
    task, log = idle(TaskOptions(commit="batch"))
    task.set_behind("b", 0, behind=True)
    task.add("a", 0, [(0, 10, "k", "late", ())])
    task.run()
    assert log.sent == []
    assert task.next_wall_clock_time is None, "it is the next batch that is waited for"
    task.add("b", 0, [(0, 5, "k", "early", ()), (1, 8, "k", "later", ())])
    task.run()
    assert values(log) == ["early", "later"]
    task.set_behind("b", 0, behind=False)
    task.run()
    assert values(log) == ["early", "later", "late"]
    task.add("b", 0, [(2, 11, "k", "alone", ())])
    task.run()
    assert values(log)[3:] == ["alone"], "no longer is one of them waited for"


def test_what_waits_and_what_it_waits_for_are_kept_with_the_tasks_state() -> None:
    options = TaskOptions(commit="batch")
    task, _ = idle(options)
    task.set_behind("b", 0, behind=True)
    task.add("a", 0, [(0, 10, "k", "late", ())])
    task.run()
    again, log = idle(options, task.snapshot())
    again.run()
    assert log.sent == []
    again.set_behind("b", 0, behind=False)
    again.run()
    assert values(log) == ["late"]


def test_the_time_for_a_partition_runs_from_when_it_is_read_to_its_end() -> None:
    task, log = idle(IDLE)
    task.set_behind("b", 0, behind=True)
    task.add("a", 0, [(0, 10, "k", "one", ())])
    task.run()
    task.advance_wall_clock(500)
    assert log.sent == []
    task.set_behind("b", 0, behind=False)
    task.run()
    assert task.next_wall_clock_time == 600
    task.advance_wall_clock(600)
    assert values(log) == ["one"]


def test_a_task_of_one_partition_waits_for_nothing() -> None:
    topology, log = merged_topics(), Log()
    (group,) = topology.subtopologies()
    task = Task(group, topology, log, partitions={"a": (0,)})
    task.set_behind("a", 0, behind=True)
    task.add("a", 0, [(0, 10, "k", "one", ())])
    task.run()
    assert values(log) == ["one"]


def test_without_max_task_idle_records_are_processed_as_they_arrive() -> None:
    task, log = idle(TaskOptions(commit="batch", max_task_idle=None))
    task.set_behind("b", 0, behind=True)
    task.add("a", 0, [(0, 10, "k", "late", ())])
    task.run()
    assert [value for _, _, value, _ in log.sent] == ["late"]
