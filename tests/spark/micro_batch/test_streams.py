"""A topology runs on Spark as it does in the test driver, over restarts too."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import TaskContext

from thulawa.brokers.embedded import Log, ProducerRecord
from thulawa.engine import Lane, Lanes
from thulawa.errors import (
    ConfigurationError,
    QueryFailed,
    StateError,
)
from thulawa.runtime.handlers import DeadLetterQueue, Handlers
from thulawa.runtime.task_options import TaskOptions
from thulawa.spark.application import Streams
from thulawa.spark.micro_batch.runner import scheduler_pool
from thulawa.streams import Processor, ProcessorContext, Record, Restart, State
from thulawa.streams.operator_options import Materialized, Named, Produced
from thulawa.streams.streams_builder import StreamsBuilder
from thulawa.topology.topology import Topology


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def address(folder: Path) -> str:
    return f"file:{folder / 'topics'}"


def produce(folder: Path, topic: str, values: range, partitions: int = 1) -> None:
    with Log(address(folder)) as log:
        if topic not in log.topics():
            log.create_topic(topic, partitions=partitions)
        records = [
            ProducerRecord(f"k{value % 7}".encode(), json.dumps(value).encode(), timestamp=value)
            for value in values
        ]
        log.append({topic: records})


def read(folder: Path, topic: str) -> list[tuple[str, Any]]:
    rows = []
    with Log(address(folder)) as log:
        for partition, end in log.end_offsets(topic).items():
            for columns in log.read_columns(topic, partition, 0, end):
                for key, value in zip(columns.keys, columns.values, strict=True):
                    assert key is not None
                    assert value is not None
                    rows.append((key.decode(), json.loads(value)))
    return rows


def streams(topology: Topology, folder: Path, spark: Any, **options: Any) -> Streams:
    return Streams(
        topology,
        application_id="app",
        log=address(folder),
        checkpoint=str(folder / "checkpoint"),
        spark=spark,
        **options,
    )


def counting(store: str = "counts") -> Topology:
    builder = StreamsBuilder()
    counted = builder.stream("in").group_by(lambda key, value: str(value % 3))
    counted.count(Materialized.as_(store)).to_stream().to("out")
    return builder.build()


def shipping(place: str, **options: Any) -> Topology:
    """Make calls with lanes, before a shuffle or behind it."""
    builder = StreamsBuilder()
    orders = builder.stream("in")
    if place == "behind":
        orders = orders.group_by_key().count(Materialized.as_("counts")).to_stream()

    async def ship(key: Any, value: Any) -> Any:
        await asyncio.sleep(0.05)
        return key, value

    orders.map_async(
        ship,
        lanes=Lanes(lanes=(Lane(name="urgent"), Lane(name="usual"))),
        lane=lambda key, _: "urgent" if key == "k0" else "usual",
        named=Named.as_("shipping"),
        **options,
    ).to("out")
    return builder.build()


@pytest.mark.parametrize("place", ["before", "behind"])
def test_an_application_tells_what_its_lanes_have_come_to(
    place: str, folder: Path, spark: Any
) -> None:
    produce(folder, "in", range(70))
    with streams(shipping(place, in_flight=5), folder, spark) as app:
        app.process_all_available()
        produce(folder, "in", range(70, 105))
        app.process_all_available()
        lanes = app.lanes()["shipping"]
    assert (lanes["urgent"].done, lanes["usual"].done) == (15, 90)
    assert 1 <= lanes["usual"].in_flight <= 5
    assert lanes["usual"].waiting > 0
    assert lanes["usual"].oldest > 0
    assert lanes["usual"].residence.p50 >= 0.05


class Ticker(Processor[str, int, str, int]):
    def init(self, context: ProcessorContext[str, int]) -> None:
        super().init(context)
        context.schedule("10 ms", "wall_clock_time", self.tick)

    def process(self, record: Record[str, int]) -> None: ...

    def tick(self, now: int) -> None:
        self.context.forward(Record("tick", 1, now))


def test_the_clock_calls_tasks_of_an_idle_topic_after_a_restart_too(
    folder: Path, spark: Any
) -> None:
    produce(folder, "in", range(0))
    topology = Topology().add_source("IN", "in").add_processor("TICK", Ticker, "IN")
    topology.add_sink("OUT", "out", "TICK")
    seen = [0]
    for _ in range(2):
        with streams(topology, folder, spark) as application:
            application.process_batches(3, "1 minute")
        seen.append(len(read(folder, "out")))
    assert seen == sorted(set(seen))


def test_counts_go_on_after_a_restart_and_can_be_looked_into(folder: Path, spark: Any) -> None:
    produce(folder, "in", range(300), partitions=2)
    application = streams(counting(), folder, spark, max_records=200)
    seen: list[State] = []
    application.add_state_listener(lambda new, old: seen.append(new))
    with application:
        application.process_all_available()
        assert {key: application.store("counts").get(key) for key in "012"} == dict.fromkeys(
            "012", 100
        )
    produce(folder, "in", range(300, 600))
    with streams(counting(), folder, spark) as again:
        again.process_all_available()
        assert list(again.store("counts").range("1", None)) == [("1", 200), ("2", 200)]
    updates = read(folder, "out")
    assert sorted(updates) == sorted((key, n) for key in "012" for n in range(1, 201))
    for key in "012":
        assert [n for name, n in updates if name == key] == list(range(1, 201))
    assert seen == [
        State.REBALANCING,
        State.RUNNING,
        State.PENDING_SHUTDOWN,
        State.NOT_RUNNING,
    ]


def test_a_table_is_there_before_the_stream_that_is_joined_whatever_the_limit(
    folder: Path, spark: Any
) -> None:
    with Log(address(folder)) as log:
        for topic in ("users", "clicks"):
            log.create_topic(topic, partitions=2)
        users = [ProducerRecord(b"u%d" % n, b'"name"', (), 1_000 + n) for n in range(400)]
        clicks = [ProducerRecord(b"u%d" % n, b"1", (), 5_000 + n) for n in range(400)]
        log.append({"users": users, "clicks": clicks})
    builder = StreamsBuilder()
    table = builder.table("users")
    builder.stream("clicks").join(table, lambda one, name: name).to("out")
    for part in (150, None):  # the second start goes on with what waits
        with streams(builder.build(), folder, spark, max_records=part) as running:
            if part is None:
                running.process_all_available("100 s")
            else:
                running.process_batches(2)
    assert len(read(folder, "out")) == 400


def test_a_global_table_is_there_before_what_looks_into_it_whatever_the_limit(
    folder: Path, spark: Any
) -> None:
    with Log(address(folder)) as log:
        for topic in ("names", "in"):
            log.create_topic(topic)
        log.append({"names": [ProducerRecord(b"k%d" % n, b'"n"') for n in range(400)]})
        log.append({"in": [ProducerRecord(b"k%d" % n, b"1") for n in range(350, 400)]})
    builder = StreamsBuilder()
    names = builder.global_table("names")
    builder.stream("in").join(names, lambda key, value: key, lambda one, name: name).to("out")
    with streams(builder.build(), folder, spark, max_records=100) as running:
        running.process_all_available("100 s")
    assert len(read(folder, "out")) == 50


def test_a_large_store_is_read_as_far_as_it_is_asked_for(folder: Path, spark: Any) -> None:
    keys = 20_000
    numbers = range(keys)
    with Log(address(folder)) as log:
        log.create_topic("in")
        log.append({"in": [ProducerRecord(b"k%d" % n, b"%d" % n, timestamp=n) for n in numbers]})
    builder = StreamsBuilder()
    builder.stream("in").group_by_key().count(Materialized.as_("counts")).to_stream().to("out")
    for again in range(1, 5):
        with streams(builder.build(), folder, spark, max_records=5_000) as application:
            application.process_all_available()
            counts = application.store("counts")
            assert (counts.get("k7"), counts.get("k19999"), counts.get("none")) == (again, 1, None)
        with Log(address(folder)) as log:
            log.append({"in": [ProducerRecord(b"k7", b"7", timestamp=keys + again)]})
    assert [count for key, count in read(folder, "out") if key == "k7"] == [1, 2, 3, 4]
    assert len(read(folder, "out")) == keys + 3


def test_a_batch_writes_no_checksums_beside_its_files(folder: Path, spark: Any) -> None:
    produce(folder, "in", range(3))
    with streams(counting(), folder, spark) as running:
        running.process_all_available()
    files = {path.name for path in (folder / "checkpoint" / "query-0").rglob("*")}
    assert {"0", "1.changelog"} <= files
    checksums = {name for name in files if name.endswith(".crc")}
    assert not checksums & {".0.crc", ".1.changelog.crc"}


def test_a_renamed_store_is_refused_unless_its_loss_is_asked_for(folder: Path, spark: Any) -> None:
    produce(folder, "in", range(9))
    with streams(counting("counts"), folder, spark) as application:
        application.process_all_available()
    with pytest.raises(StateError, match="'counts' is in the checkpoint"):
        streams(counting("totals"), folder, spark).start()
    produce(folder, "in", range(9, 12))
    with streams(counting("totals"), folder, spark, allow_state_loss=True) as edited:
        edited.process_all_available()
    assert read(folder, "out")[-3:] == [("0", 1), ("1", 1), ("2", 1)]


def test_timers_added_to_a_program_are_refused_or_begin_a_query_that_reads_on(
    folder: Path, spark: Any
) -> None:
    def named(*, timed: bool) -> Topology:
        builder = StreamsBuilder()
        stream = builder.stream("in")
        names = builder.global_table("names")
        by_name = stream.join(names, lambda key, _: key, lambda _, name: str(name))
        counted = by_name.group_by(lambda _, name: name).count(Materialized.as_("counts"))
        counted.to_stream().to("out")
        if timed:
            stream.process(Ticker).to("ticks")
        return builder.build()

    produce(folder, "names", range(7))
    produce(folder, "in", range(7))
    with streams(named(timed=False), folder, spark) as application:
        application.process_all_available()
    produce(folder, "in", range(7, 10))
    with pytest.raises(StateError, match="no timers and now has some"):
        streams(named(timed=True), folder, spark).start()
    with streams(named(timed=True), folder, spark, allow_state_loss=True) as edited:
        edited.process_all_available()
    # nothing is read twice, but for the global table
    assert read(folder, "out")[7:] == [("0", 1), ("1", 1), ("2", 1)]
    produce(folder, "in", range(10, 11))
    with streams(named(timed=False), folder, spark) as without:
        without.process_all_available()
    assert read(folder, "out")[10:] == [("3", 1)]


def test_a_missing_topic_and_uneven_partitions_are_refused(folder: Path, spark: Any) -> None:
    with pytest.raises(ConfigurationError, match="'in' does not exist"):
        streams(counting(), folder, spark).start()
    produce(folder, "left", range(1), partitions=2)
    produce(folder, "right", range(1), partitions=3)
    builder = StreamsBuilder()
    joined = builder.stream("left").join(builder.table("right"), lambda one, other: other)
    joined.to("out")
    with pytest.raises(ConfigurationError, match="left has 2, right has 3"):
        streams(builder.build(), folder, spark).start()


def test_an_error_of_the_program_ends_the_application_and_is_raised(
    folder: Path, spark: Any
) -> None:
    produce(folder, "in", range(3))
    builder = StreamsBuilder()
    builder.stream("in").map_values(lambda value: 1 // (value - 2)).to("out")
    application = streams(builder.build(), folder, spark).start()
    with pytest.raises(QueryFailed, match="ZeroDivisionError in the function given at") as found:
        application.await_termination()
    assert str(found.value).splitlines()[1:] == [
        "caused by ZeroDivisionError: integer division or modulo by zero"
    ]
    assert "Streaming Query" in str(found.value.__cause__)
    assert application.state is State.ERROR
    assert read(folder, "out") == []


def test_who_runs_already_goes_on_and_another_of_the_same_checkpoint_is_refused(
    folder: Path, spark: Any
) -> None:
    produce(folder, "in", range(3))
    with streams(counting(), folder, spark) as first:
        first.process_all_available()
        with pytest.raises(Exception, match="runs in this process already"):
            streams(counting(), folder, spark).start()
        produce(folder, "in", range(3, 6))
        first.process_all_available()
    assert first.state is State.NOT_RUNNING
    assert sorted(read(folder, "out")) == sorted((key, n) for key in "012" for n in (1, 2))


@pytest.mark.timeout(600)  # a machine that is busy fails it a few times more
def test_an_application_that_failed_starts_again_and_goes_on(folder: Path, spark: Any) -> None:
    produce(folder, "in", range(3))
    mended = folder / "mended"

    def checked(value: int) -> int:
        if value == 2 and not mended.exists():
            raise LookupError
        return value

    builder = StreamsBuilder()
    builder.stream("in").map_values(checked).to("out")
    application = streams(builder.build(), folder, spark, on_error=Restart(first="100 ms"))

    def mend(new: State, old: State) -> None:
        if new is State.REBALANCING:
            mended.touch()

    with application:
        application.add_state_listener(mend)
        application.process_all_available("8 minutes")
    assert read(folder, "out") == [("k0", 0), ("k1", 1), ("k2", 2)]


def test_a_partitioner_is_told_the_partitions_and_late_failures_become_letters(
    folder: Path, spark: Any
) -> None:
    produce(folder, "in", range(6))
    with Log(address(folder)) as log:
        log.create_topic("out", partitions=3)
        log.create_topic("dead")
    builder = StreamsBuilder()
    rekeyed = builder.stream("in").select_key(lambda key, value: str(value)).repartition()
    checked = rekeyed.map_values(lambda value: value // (value != 4))
    checked.to("out", Produced(partitioner=lambda key, value, count: int(key) % count))
    chosen = TaskOptions(commit="batch", handlers=Handlers(processing=DeadLetterQueue("dead")))
    with streams(builder.build(), folder, spark, options=chosen) as application:
        application.process_all_available()
    with Log(address(folder)) as log:
        ends = log.end_offsets("out")
    assert dict(ends) == {0: 2, 1: 1, 2: 2}
    assert read(folder, "dead") == [("4", 4)]


def test_applications_on_one_session_share_its_cores_by_weight(folder: Path, spark: Any) -> None:
    produce(folder, "in", range(1))
    builder = StreamsBuilder()
    told = builder.stream("in").map_values(
        lambda _: TaskContext.get().getLocalProperty("spark.scheduler.pool")  # type: ignore[union-attr]
    )
    told.to("out")
    with streams(builder.build(), folder, spark, weight=3, on_error=Restart()) as application:
        application.process_all_available()
    ((_, pool),) = read(folder, "out")
    assert spark.sparkContext._jsc.sc().getPoolForName(pool).get().weight() == 3
    assert spark.sparkContext.getLocalProperty("spark.scheduler.pool") is None


@pytest.mark.parametrize("weight", [0, -1, 1.5, True])
def test_a_weight_that_is_none_is_refused(folder: Path, weight: Any) -> None:
    with pytest.raises(ConfigurationError, match="weight must be"):
        streams(counting(), folder, None, weight=weight)


def test_a_weight_needs_a_session_that_is_fair() -> None:
    conf = {"spark.scheduler.mode": "FIFO"}
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: conf))
    with scheduler_pool(session, "app", 1):
        pass
    with (
        pytest.raises(ConfigurationError, match="weight=2 needs a session"),
        scheduler_pool(session, "app", 2),
    ):
        pass
