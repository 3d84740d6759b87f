"""The Processor API: forwarding, stores, punctuation, metadata, errors."""

from typing import Any

import pytest

import thulawa
from thulawa.errors import (
    ConfigurationError,
    ProcessingError,
    SerializationError,
    TopologyError,
)
from thulawa.runtime.handlers import DeadLetterQueue, Handlers
from thulawa.runtime.task_options import TaskOptions
from thulawa.streams import (
    Processor,
    ProcessorContext,
    Record,
    Serdes,
    StoreSpec,
    StreamsBuilder,
    Topology,
)
from thulawa.testing import TopologyTestDriver


class Forwarding(Processor[Any, Any, Any, Any]):
    """Forwards by the name its value gives."""

    def process(self, record: Record[Any, Any]) -> None:
        self.context.forward(record, record.value)


def two_children() -> Topology:
    topology = Topology().add_source("in", "in").add_processor("p", Forwarding, "in")
    return topology.add_sink("left", "left", "p").add_sink("right", "right", "p")


def test_a_record_goes_to_all_children_or_to_one_by_name() -> None:
    with TopologyTestDriver(two_children()) as driver:
        topic = driver.create_input_topic("in")
        left, right = driver.create_output_topic("left"), driver.create_output_topic("right")
        topic.pipe_input("k", None)
        assert (left.queue_size, right.queue_size) == (1, 1)
        topic.pipe_input("k", "right")
        assert (left.queue_size, right.queue_size) == (1, 2)


def test_an_unknown_child_is_an_error_that_names_the_children() -> None:
    with TopologyTestDriver(two_children()) as driver:
        topic = driver.create_input_topic("in")
        with pytest.raises(
            ProcessingError, match=r"no child 'middle'; there are \['left', 'right'"
        ):
            topic.pipe_input("k", "middle")


def test_another_record_than_that_of_programs_is_an_error_that_says_which() -> None:
    class Wrong(Processor[Any, Any, Any, Any]):
        def process(self, record: Record[Any, Any]) -> None:
            self.context.forward(thulawa.engine.WorkItem("in", 0, record.value))  # type: ignore[arg-type]

    topology = Topology().add_source("in", "in").add_processor("p", Wrong, "in")
    with TopologyTestDriver(topology.add_sink("out", "out", "p")) as driver:
        topic = driver.create_input_topic("in")
        with pytest.raises(ProcessingError, match=r"from thulawa\.streams import Record"):
            topic.pipe_input("k", 1)


def test_metadata_stream_time_and_headers_are_those_of_the_record() -> None:
    seen: list[Any] = []

    class Look(Processor[Any, Any, Any, Any]):
        def process(self, record: Record[Any, Any]) -> None:
            seen.append((self.context.record_metadata, self.context.stream_time, record.headers))

    topology = Topology().add_source("in", "a", "b").add_processor("p", Look, "in")
    with TopologyTestDriver(topology) as driver:
        driver.create_input_topic("b").pipe_input("k", 1, 50, (("h", b"1"),))
        driver.create_input_topic("b").pipe_input("k", 1, 20)
        driver.create_input_topic("a").pipe_input("k", 1, 30)
    places = [(meta.topic, meta.partition, meta.offset) for meta, _, _ in seen]
    assert places == [("b", 0, 0), ("b", 0, 1), ("a", 0, 0)]
    assert [time for _, time, _ in seen] == [50, 50, 50]
    assert seen[0][2] == (("h", b"1"),)


def test_stream_time_punctuation_lies_on_multiples_and_a_jump_fires_once() -> None:
    fired: list[tuple[int, object]] = []

    class Punctual(Processor[Any, Any, Any, Any]):
        def init(self, context: Any) -> None:
            super().init(context)
            context.schedule("10 ms", "stream_time", self.tick)

        def tick(self, now: int) -> None:
            fired.append((now, self.context.record_metadata))

        def process(self, record: Record[Any, Any]) -> None: ...

    topology = Topology().add_source("in", "in").add_processor("p", Punctual, "in")
    with TopologyTestDriver(topology) as driver:
        topic = driver.create_input_topic("in")
        for time in (3, 9, 35, 36, 40):
            topic.pipe_input("k", 1, time)
    assert fired == [(3, None), (35, None), (40, None)]


def test_a_cancelled_punctuation_does_not_come_again_even_from_within() -> None:
    fired: list[int] = []

    class Once(Processor[Any, Any, Any, Any]):
        def init(self, context: Any) -> None:
            self.schedule = context.schedule(10, "wall_clock_time", self.tick)

        def tick(self, now: int) -> None:
            fired.append(now)
            self.schedule.cancel()

        def process(self, record: Record[Any, Any]) -> None: ...

    topology = Topology().add_source("in", "in").add_processor("p", Once, "in")
    with TopologyTestDriver(topology) as driver:
        for _ in range(5):
            driver.advance_wall_clock_time(10)
    assert fired == [10]


def test_send_writes_to_any_topic() -> None:
    class Send(Processor[Any, Any, Any, Any]):
        def process(self, record: Record[Any, Any]) -> None:
            self.context.send("elsewhere", record.key, record.value, record.timestamp)

    topology = Topology().add_source("in", "in").add_processor("p", Send, "in")
    with TopologyTestDriver(topology) as driver:
        driver.create_input_topic("in").pipe_input("k", 1, 7)
        assert driver.create_output_topic("elsewhere").read_record() == Record(b"k", b"1", 7)
        assert driver.produced_topic_names() == {"elsewhere"}


def test_send_writes_headers_and_by_serdes_and_checks_the_topic() -> None:
    class Send(Processor[Any, Any, Any, Any]):
        def process(self, record: Record[Any, Any]) -> None:
            topic, headers = record.key, (("h", b"1"),)
            self.context.send(topic, "k", record.value, 7, headers, value_serde=Serdes.long())

    topology = Topology().add_source("in", "in").add_processor("p", Send, "in")
    with TopologyTestDriver(topology) as driver:
        topic = driver.create_input_topic("in")
        topic.pipe_input("sent", 1)
        written = driver.create_output_topic("sent", value_serde=Serdes.long())
        assert written.read_record() == Record(b"k", 1, 7, (("h", b"1"),))
        for key, value in (("../x", 1), ("sent", "text")):
            with pytest.raises((ProcessingError, SerializationError)):
                topic.pipe_input(key, value)
        assert written.is_empty()


@pytest.mark.parametrize("kind", ["stream_time", "wall_clock_time"])
def test_an_error_in_a_punctuation_goes_to_the_processing_handler(kind: Any) -> None:
    class Faulty(Processor[Any, Any, Any, Any]):
        def init(self, context: ProcessorContext[Any, Any]) -> None:
            context.schedule(10, kind, self.divide)

        def divide(self, now: int) -> None:
            raise ZeroDivisionError

        def process(self, record: Record[Any, Any]) -> None: ...

    topology = Topology().add_source("in", "in").add_processor("p", Faulty, "in")
    options = TaskOptions(handlers=Handlers(processing=DeadLetterQueue("dead")))
    with TopologyTestDriver(topology, options=options) as driver:
        driver.create_input_topic("in").pipe_input("k", 1, 5)
        driver.advance_wall_clock_time(10)
        letter = driver.create_output_topic("dead").read_record()
        assert (letter.key, letter.value) == (None, None)
        assert dict(letter.headers)["__streams.errors.node"] == b"p"
    with TopologyTestDriver(topology) as driver:
        topic = driver.create_input_topic("in")
        due = {
            "stream_time": lambda: topic.pipe_input("k", 1, 5),
            "wall_clock_time": lambda: driver.advance_wall_clock_time(10),
        }
        with pytest.raises(ProcessingError) as caught:
            due[kind]()
        assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_store_must_be_connected_to_be_used() -> None:
    class Nosy(Processor[Any, Any, Any, Any]):
        def process(self, record: Record[Any, Any]) -> None:
            self.context.state_store("secret")

    topology = Topology().add_source("in", "in").add_processor("p", Nosy, "in")
    topology.add_state_store(StoreSpec(name="secret"))
    with TopologyTestDriver(topology) as driver:
        topic = driver.create_input_topic("in")
        with pytest.raises(ProcessingError, match="not connected"):
            topic.pipe_input("k", 1)


def test_process_values_refuses_another_key() -> None:
    class Rekey(Processor[Any, Any, Any, Any]):
        def process(self, record: Record[Any, Any]) -> None:
            self.context.forward(record.with_key("other"))

    builder = StreamsBuilder()
    builder.stream("in").process_values(Rekey).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in")
        with pytest.raises(ProcessingError, match="must not change the key"):
            topic.pipe_input("k", 1)


def test_processors_are_closed_with_the_driver() -> None:
    closed: list[str] = []

    class Closing(Processor[Any, Any, Any, Any]):
        def process(self, record: Record[Any, Any]) -> None: ...

        def close(self) -> None:
            closed.append("closed")

    topology = Topology().add_source("in", "in").add_processor("p", Closing, "in")
    with TopologyTestDriver(topology):
        assert closed == []
    assert closed == ["closed"]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda t: t.add_source("s"), "at least one topic"),
        (lambda t: t.add_processor("p", Forwarding), "at least one parent"),
        (lambda t: t.add_processor("p", Forwarding, "nobody"), "no node 'nobody'"),
        (lambda t: t.add_source("s", "a").add_source("s", "b"), "node 's' already exists"),
        (lambda t: t.add_source("s", "a").add_source("r", "a"), "is already read"),
        (lambda t: t.add_source("s", "../x"), "holds '/'"),
        (lambda t: t.add_source("s", "."), "means a folder"),
        (lambda t: t.add_source("s", "a" * 250), "at most 249"),
        (lambda t: t.add_source("s", "a\n"), "holds"),
        (lambda t: t.add_source("s", "a\0"), "holds"),
        (lambda t: t.add_state_store(StoreSpec(name="../x")), "holds '/'"),
        (lambda t: t.add_source("s", "a").connect("s", "x"), "is not a processor"),
        (
            lambda t: t.add_source("s", "a").add_sink("k", "b", "s").add_sink("l", "c", "k"),
            "it has no output",
        ),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_built(build: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build(Topology())


def test_the_error_names_the_line_of_the_program() -> None:
    topology = Topology().add_source("s", "a")
    with pytest.raises(TopologyError) as caught:
        topology.add_source("s", "b")
    assert caught.value.where is not None
    assert caught.value.where.startswith(__file__)
