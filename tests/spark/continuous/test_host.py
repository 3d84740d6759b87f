"""A continuous host, in this process: errors, crashes, stops and replaced applications."""

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from thulawa.brokers.port import Broker, open_broker, read_to_end
from thulawa.core.types import ProducerRecord, TopicPartition
from thulawa.errors import Fenced, StateError, StreamError, ThulawaError
from thulawa.runtime.handlers import DeadLetterQueue, Handlers
from thulawa.runtime.task_options import TaskOptions
from thulawa.spark.continuous import host as host_module
from thulawa.spark.continuous.continuous_program import ContinuousProgram
from thulawa.spark.continuous.continuous_streams import build_program, create_internal_topics
from thulawa.spark.continuous.host import Host
from thulawa.spark.continuous.previous_run import check_previous_run, record_run
from thulawa.streams import AsyncProcessor, Record, StoreSpec, StreamsBuilder

Build = Callable[[StreamsBuilder], Any]

_IN = TopicPartition("in", 0)


class Application:
    """A program over an embedded log, whose hosts run in threads."""

    def __init__(self, folder: Path, build: Build, partitions: int = 1, **options: Any) -> None:
        self.broker: Broker = open_broker(f"file:{folder}/topics")
        for topic in ("in", "table", "out", "dead"):
            self.broker.create_topic(topic, partitions)
        self.build, self.options = build, options
        self.state_dir = f"{folder}/state"
        self.program = self.planned()

    def planned(self, hosts: int = 1, **options: Any) -> ContinuousProgram:
        builder = StreamsBuilder()
        self.build(builder)
        options = {"task_options": TaskOptions(commit="batch"), **self.options, **options}
        return build_program(
            builder.build(),
            self.broker,
            application_id="app",
            options=options.pop("task_options"),
            hosts=lambda tasks: min(hosts, tasks),
            commit_interval=0.02,
            **{"state_dir": self.state_dir, **options},
        )

    def start(self, program: ContinuousProgram | None = None) -> "list[Running]":
        self.program = replace(program or self.program, run=uuid4().hex)
        check_previous_run(self.program)
        create_internal_topics(self.program)
        record_run(self.program)
        return [Running(self.program, number) for number in range(len(self.program.hosts))]

    def send(self, *records: tuple[str, Any], topic: str = "in", at: int | None = None) -> None:
        rows = [ProducerRecord(k.encode(), json.dumps(v).encode(), (), at) for k, v in records]
        self.broker.append(topic, rows)

    def out(self, topic: str = "out") -> list[tuple[str, Any]]:
        records = read_to_end(self.broker, topic)
        return [((one.key or b"").decode(), json.loads(one.value or b"null")) for one in records]


class Running:
    """A host on a thread."""

    def __init__(self, program: ContinuousProgram, number: int = 0) -> None:
        self.host = Host(program, number)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.host.run()
        except BaseException as error:  # noqa: BLE001 looked at by the test
            self.error = error

    def ended(self) -> bool:
        self._thread.join(30)
        return not self._thread.is_alive()

    def stop(self) -> None:
        self.host.stop()
        assert self.ended()
        assert self.error is None

    def crash(self) -> None:
        self.host.fail(ThulawaError("killed by the test"))
        assert self.ended()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def commits(running: Running, count: int = 3) -> None:
    """Wait for so many rounds with a commit interval each."""
    end = running.host.status.rounds + 5 * count
    until(lambda: running.host.status.rounds >= end)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Return an event that calls of `waiting` wait for."""
    event = threading.Event()
    yield event
    event.set()


def waiting(gate: threading.Event) -> Callable[[Any], Any]:
    async def call(value: Any) -> Any:
        while value != "quick" and not gate.is_set():  # noqa: ASYNC110 of another thread
            await asyncio.sleep(0.005)
        return value

    return call


def test_nothing_is_committed_after_a_result_could_not_be_processed(tmp_path: Path) -> None:
    def call(value: Any) -> Any:  # on a thread, for which the engine waits
        time.sleep(0.5 if value == "slow" else 0.01)
        return value

    def fails(value: Any) -> Any:
        raise ValueError(value)

    def build(builder: StreamsBuilder) -> None:
        counted = builder.stream("in").map_values_async(call).group_by_key().count()
        counted.to_stream().map_values(fails).to("out")

    app = Application(tmp_path, build)
    for _ in range(2):
        (running,) = app.start()
        if not app.broker.end_offsets("in")["in"][0]:
            app.send(("a", "x"), ("b", "slow"))
        assert running.ended()
        assert isinstance(running.error, StreamError)
        (changelog,) = app.program.changelogs()
        assert list(read_to_end(app.broker, changelog)) == []


def test_a_call_that_fails_while_its_task_settles_ends_the_host(tmp_path: Path) -> None:
    async def fails(value: Any) -> Any:
        await asyncio.sleep(0.1)
        raise ValueError(value)

    def build(builder: StreamsBuilder) -> None:
        builder.stream("in").group_by_key().count().to_stream().map_values_async(fails).to("out")

    app = Application(tmp_path, build)
    (running,) = app.start()
    app.send(("a", 1))
    assert running.ended()
    assert isinstance(running.error, StreamError)


def test_a_call_behind_another_is_made(tmp_path: Path) -> None:
    async def pair(key: Any, value: Any) -> Any:
        await asyncio.sleep(0.01)
        return [(key, value), (key, value + 100)]

    async def same(value: Any) -> Any:
        await asyncio.sleep(0.01)
        return value

    app = Application(
        tmp_path, lambda b: b.stream("in").flat_map_async(pair).map_values_async(same).to("out")
    )
    (running,) = app.start()
    app.send(*((f"k{number}", number) for number in range(5)))
    until(lambda: len(app.out()) == 10)
    running.stop()


def test_a_stop_flushes_caches_into_calls_and_waits_for_them(
    tmp_path: Path, gate: threading.Event
) -> None:
    def build(builder: StreamsBuilder) -> None:
        counted = builder.stream("in").group_by_key().count()
        counted.to_stream().map_values_async(waiting(gate)).to("out")

    app = Application(tmp_path, build)
    app.send(("a", 1), ("a", 2))
    (running,) = app.start(replace(app.program, commit_interval=60.0))
    until(lambda: running.host._tasks and running.host._tasks[0]._positions() == {_IN: 2})
    running.host.stop()
    gate.set()
    assert running.ended()
    assert app.out()[-1] == ("a", 2)


@pytest.mark.parametrize("exactly_once", [True, False])
def test_calls_behind_a_cache_are_made_again_after_a_crash(
    exactly_once: bool,  # noqa: FBT001 a parameter of the test
    tmp_path: Path,
    gate: threading.Event,
) -> None:
    def build(builder: StreamsBuilder) -> None:
        counted = builder.stream("in").group_by_key().count()
        counted.to_stream().map_values_async(waiting(gate)).to("out")

    app = Application(tmp_path, build, exactly_once=exactly_once)
    (running,) = app.start()
    app.send(("a", 1), ("b", 1), ("c", 1))
    until(lambda: running.host._tasks and running.host._tasks[0].in_flight)
    time.sleep(0.1)
    running.crash()
    gate.set()
    (running,) = app.start()
    until(lambda: len(app.out()) == 3)
    running.stop()
    assert sorted(app.out()) == [("a", 1), ("b", 1), ("c", 1)]


def test_an_async_processor_changes_its_store_once_though_it_crashes(
    tmp_path: Path, gate: threading.Event
) -> None:
    class Counting(AsyncProcessor[Any, Any, Any, Any]):
        def init(self, context: Any) -> None:
            super().init(context)
            self.store = context.state_store("counts")

        async def process(self, record: Record[Any, Any]) -> None:
            count = (self.store.get(record.key) or 0) + 1
            self.store.put(record.key, count)
            while not gate.is_set():  # noqa: ASYNC110 of another thread
                await asyncio.sleep(0.005)
            self.context.forward(Record(record.key, count, record.timestamp))

    def build(builder: StreamsBuilder) -> None:
        builder.add_state_store(StoreSpec(name="counts"))
        builder.stream("in").process_async(Counting, "counts").to("out")

    app = Application(tmp_path, build)
    (running,) = app.start()
    app.send(("a", 1))
    until(lambda: running.host._tasks and running.host._tasks[0].in_flight)
    time.sleep(0.1)
    running.crash()
    gate.set()
    (running,) = app.start()
    until(app.out)
    running.stop()
    assert app.out() == [("a", 1)]


def test_the_dead_letter_of_a_call_is_written_once_though_an_earlier_call_is_in_flight(
    tmp_path: Path, gate: threading.Event
) -> None:
    async def call(value: Any) -> Any:
        if value == "bad":
            raise ValueError(value)
        return await waiting(gate)(value)

    def build(builder: StreamsBuilder) -> None:
        builder.stream("in").map_values_async(call).group_by_key().count().to_stream().to("out")

    handlers = Handlers(processing=DeadLetterQueue("dead"))
    app = Application(tmp_path, build, task_options=TaskOptions(commit="batch", handlers=handlers))
    (running,) = app.start()
    app.send(("a", "slow"), ("b", "bad"))
    until(lambda: app.out("dead"))
    commits(running)
    running.crash()
    gate.set()
    (running,) = app.start()
    until(app.out)
    running.stop()
    assert len(app.out("dead")) == 1
    assert app.out() == [("a", 1)]


def test_a_join_waits_for_the_table_when_the_application_starts(tmp_path: Path) -> None:
    def build(builder: StreamsBuilder) -> None:
        table = builder.table("table")
        builder.stream("in").left_join(table, lambda value, other: [value, other]).to("out")

    app = Application(tmp_path, build)
    app.send(*[("k", number) for number in range(6_000)], at=2_000)
    app.send(("k", "known"), topic="table", at=1_000)
    (running,) = app.start()
    until(lambda: len(app.out()) == 6_000)
    running.stop()
    assert {other for _, (_, other) in app.out()} == {"known"}


def test_a_call_that_does_not_return_stops_the_reading(
    tmp_path: Path, gate: threading.Event
) -> None:
    def build(builder: StreamsBuilder) -> None:
        called = builder.stream("in").map_values_async(waiting(gate))
        called.group_by_key().count().to_stream().to("out")

    app = Application(tmp_path, build)
    app.send(("slow", "slow"), *((f"k{number}", "quick") for number in range(60_000)))
    (running,) = app.start()
    until(lambda: running.host._tasks and running.host._tasks[0].in_flight > 10_000)
    commits(running, 10)
    assert running.host._tasks[0].in_flight < 30_000
    gate.set()
    until(lambda: len(app.out()) == 60_001)
    running.stop()


def test_a_retried_host_of_a_replaced_application_gives_up(tmp_path: Path) -> None:
    def build(builder: StreamsBuilder) -> None:
        builder.stream("in").group_by_key().count().to_stream().to("out")

    app = Application(tmp_path, build, partitions=2)
    old = app.start(app.planned(hosts=2))
    replaced = app.program
    keys = [(f"k{number}", number) for number in range(20)]
    app.send(*keys)
    until(lambda: len(app.out()) == 20)
    (new,) = app.start(app.planned(hosts=1))
    app.send(*keys)
    until(lambda: len(app.out()) == 40)
    for one in old:
        assert one.ended()
        assert isinstance(one.error, Fenced)
    retried = Running(replaced, 1)
    assert retried.ended()
    assert isinstance(retried.error, Fenced)
    app.send(*keys)
    until(lambda: len(app.out()) == 60)
    new.stop()
    assert set(Counter(app.out()).values()) == {1}


def test_another_grouping_of_partitions_is_rejected(tmp_path: Path) -> None:
    def build(builder: StreamsBuilder) -> None:
        builder.stream("in").group_by_key().count().to_stream().to("out")

    app = Application(tmp_path, build, partitions=2)
    (running,) = app.start()
    running.stop()
    swapped = app.planned(
        planning={"grouper": lambda _: [{TopicPartition("in", 1)}, {TopicPartition("in", 0)}]}
    )
    with pytest.raises(StateError, match="assignment of partitions to tasks"):
        app.start(swapped)
    app.broker.delete_topic(next(iter(app.program.changelogs())))
    with pytest.raises(StateError, match="was deleted"):
        app.start(app.planned())


def test_dead_letters_of_global_tables_are_written_once_and_committed(tmp_path: Path) -> None:
    def build(builder: StreamsBuilder) -> None:
        table = builder.global_table("table")
        stream = builder.stream("in")
        stream.join(table, lambda key, _: key, lambda value, other: [value, other]).to("out")

    handlers = Handlers(deserialization=DeadLetterQueue("dead"))
    app = Application(
        tmp_path, build, partitions=2, task_options=TaskOptions(commit="batch", handlers=handlers)
    )
    app.broker.append("table", [ProducerRecord(b"k", b"{no json")])
    for _ in range(2):
        running = app.start(app.planned(hosts=2))
        until(lambda: len(list(read_to_end(app.broker, "dead"))) == 1)
        for one in running:
            commits(one)
            one.stop()
    assert len(list(read_to_end(app.broker, "dead"))) == 1


def test_what_was_read_is_deleted_from_a_repartition_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "_DELETION_SECONDS", 0.05)

    def build(builder: StreamsBuilder) -> None:
        counted = builder.stream("in").group_by(lambda _, value: str(value % 3)).count()
        counted.to_stream().to("out")

    app = Application(tmp_path, build)
    (running,) = app.start()
    (inner,) = app.program.internal_topics()
    for number in range(40):
        app.send(("k", number))
        time.sleep(0.01)
    until(lambda: len(app.out()) == 40)
    while not app.broker.start_offsets(inner)[inner][0]:
        app.send(("k", 1))
        time.sleep(0.05)
    running.stop()
