"""The two example programs of KIP-28, translated line by line."""

from typing import Any

from thulawa.streams import (
    KStreamBuilder,
    Processor,
    ProcessorContext,
    Record,
    StoreSpec,
    TopologyBuilder,
)
from thulawa.testing import TopologyTestDriver


class MyProcessor(Processor[str, int, str, int]):
    def init(self, context: ProcessorContext[str, int]) -> None:
        super().init(context)
        context.schedule(1000, "stream_time", self.punctuate)
        self.store = context.state_store("local-state")
        self.closed = False

    def process(self, record: Record[str, int]) -> None:
        old_value = self.store.get(record.key)
        if old_value is None:
            self.store.put(record.key, record.value)
        else:
            self.store.put(record.key, old_value + record.value)
        self.context.commit()

    def punctuate(self, stream_time: int) -> None:
        for key, value in self.store.all():
            self.context.forward(Record(key, value, stream_time))


def test_processor_job() -> None:
    builder = TopologyBuilder()
    builder.add_source("SOURCE", "topic-source")
    builder.add_processor("PROCESS", MyProcessor, "SOURCE")
    builder.add_state_store(StoreSpec(name="local-state"), "PROCESS")
    builder.add_sink("SINK", "topic-sink", "PROCESS")
    with TopologyTestDriver(builder) as driver:
        source = driver.create_input_topic("topic-source")
        sink = driver.create_output_topic("topic-sink")
        source.pipe_input("a", 1, timestamp=5)
        assert sink.read_key_values_to_list() == [("a", 1)]
        source.pipe_input("a", 2, timestamp=900)
        source.pipe_input("b", 7, timestamp=999)
        assert sink.is_empty()
        source.pipe_input("b", 1, timestamp=1000)
        assert sink.read_records_to_list() == [Record("a", 3, 1000), Record("b", 8, 1000)]
        assert dict(driver.get_key_value_store("local-state").all()) == {"a": 3, "b": 8}


def test_kstream_job() -> None:
    builder = KStreamBuilder()
    stream1 = builder.from_("topic1")
    stream2 = stream1.map(lambda key, value: (key, int(value))).filter(lambda key, value: True)
    streams = stream2.branch(lambda key, value: value > 10, lambda key, value: value <= 10)
    streams[0].send_to("topic2")
    streams[1].send_to("topic3")
    with TopologyTestDriver(builder.build()) as driver:
        pairs: list[tuple[str, Any]] = [("a", "5"), ("b", "50"), ("c", "10")]
        driver.create_input_topic("topic1").pipe_key_value_list(pairs)
        assert driver.create_output_topic("topic2").read_key_values_to_list() == [("b", 50)]
        assert driver.create_output_topic("topic3").read_key_values_to_list() == [
            ("a", 5),
            ("c", 10),
        ]
