"""Records that an application leaves out on Spark: counted, answered for, and set aside."""

import json
from pathlib import Path
from typing import Any

import pytest

from thulawa.brokers.embedded import Log, ProducerRecord
from thulawa.errors import QueryFailed
from thulawa.runtime.handlers import DeadLetterQueue, Handlers, log_and_continue
from thulawa.runtime.metrics import NodeMetrics
from thulawa.runtime.task_options import TaskOptions
from thulawa.spark.application import Streams
from thulawa.spark.micro_batch import brokers
from thulawa.spark.micro_batch.output_limits import OutputLimits
from thulawa.streams import Consumed, Materialized, Produced, StreamsBuilder, TimeWindows
from thulawa.testing import TopologyTestDriver
from thulawa.topology.topology import Topology

DEAD = DeadLetterQueue("dead")


def produce(address: str, records: list[tuple[str, Any, int]]) -> None:
    with Log(address) as log:
        if "in" not in log.topics():
            log.create_topic("in", partitions=4)
        log.append(
            {
                "in": [
                    ProducerRecord(
                        key.encode(),
                        value if isinstance(value, bytes) else json.dumps(value).encode(),
                        timestamp=time,
                    )
                    for key, value, time in records
                ]
            }
        )


def read(address: str, topic: str) -> list[Any]:
    with Log(address) as log:
        ends = log.end_offsets(topic)
        return [record for number in ends for record in log.read(topic, number, 0)]


def windows_and_divisions() -> Topology:
    builder = StreamsBuilder()
    read: Consumed[Any, Any] = Consumed(name="source")
    divided = builder.stream("in", read).map_values(lambda v: 100 // v, named="divide")
    keyed = divided.select_key(lambda key, value: key[0]).group_by_key()
    windows = keyed.windowed_by(TimeWindows.of(10))
    windows.count(Materialized.as_("counts"), named="count").to_stream().to("out")
    return builder.build()


def test_metrics_are_those_of_the_test_driver(tmp_path: Path, spark: Any) -> None:
    first = [(f"a{n}", 1, 100) for n in range(8)]
    second = [("a1", b"{", 100), ("a2", 0, 100), ("a3", 0, 100), ("a4", 1, 5), ("a5", 2, 105)]
    options = TaskOptions(handlers=Handlers(deserialization=log_and_continue, processing=DEAD))
    topology, address = windows_and_divisions(), f"file:{tmp_path}/topics"
    produce(address, first)
    application = Streams(topology, application_id="app", log=address, spark=spark, options=options)
    assert application.metrics() == {}
    with application:
        application.process_all_available()
        assert application.metrics() == {}
        produce(address, second)
        application.process_all_available()
        found = application.metrics()
    with TopologyTestDriver(topology, options=options, partitions=4) as driver:
        for key, value, time in (*first, *second):
            driver.create_input_topic("in").pipe_input(key, value, time)
        assert found == driver.metrics()
    (late,) = [node for name, node in found.items() if name not in ("source", "divide")]
    assert late == NodeMetrics(dropped_records=1, late_records=1)
    assert found["source"] == NodeMetrics(dropped_records=1, skipped_records=1)
    assert found["divide"] == NodeMetrics(dropped_records=2, dead_letter_records=2)
    assert len(read(address, "dead")) == 2  # the topic was created at the start


def chosen_topics() -> Topology:
    builder = StreamsBuilder()
    builder.stream("in").to(lambda key, value: f"to-{value}", Produced(name="sink"))
    return builder.build()


def test_an_unknown_topic_is_the_production_handlers_affair(tmp_path: Path, spark: Any) -> None:
    address = f"file:{tmp_path}/topics"
    produce(address, [("a", "known", 1), ("b", "unknown", 2), ("c", "known", 3)])
    with Log(address) as log:
        log.create_topic("to-known")
    options = TaskOptions(handlers=Handlers(production=DEAD))
    application = Streams(
        chosen_topics(), application_id="app", log=address, spark=spark, options=options
    )
    with application:
        application.process_all_available()
        assert application.metrics() == {
            "sink": NodeMetrics(dropped_records=1, dead_letter_records=1)
        }
    assert sorted(record.key for record in read(address, "to-known")) == [b"a", b"c"]
    (letter,) = read(address, "dead")
    headers = dict(letter.headers)
    assert (letter.key, letter.value) == (b"b", b'"unknown"')
    assert headers["__streams.errors.message"] == b"there is no topic 'to-unknown': create it"
    assert headers["__streams.errors.topic"] == b"in"
    strict = Streams(chosen_topics(), application_id="strict", log=address, spark=spark)
    with pytest.raises(QueryFailed, match="there is no topic 'to-unknown'"), strict:
        strict.process_all_available()


def test_an_oversized_record_is_the_production_handlers_affair(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Small(OutputLimits):
        __slots__ = ()

        def limit(self, topic: str) -> int | None:
            OutputLimits.limit(self, topic)  # raises for a topic that does not exist
            return 2_000

    monkeypatch.setattr(brokers, "OutputLimits", Small)
    address = f"file:{tmp_path}/topics"
    produce(address, [("a", 1, 1), ("b", 5_000, 2), ("c", 3, 3)])
    builder = StreamsBuilder()
    builder.stream("in").map_values(lambda n: "x" * n).to("out", Produced(name="sink"))
    options = TaskOptions(handlers=Handlers(production=DEAD))
    application = Streams(
        builder.build(), application_id="app", log=address, spark=spark, options=options
    )
    with application:
        application.process_all_available()
    assert sorted(record.key for record in read(address, "out")) == [b"a", b"c"]
    (letter,) = read(address, "dead")
    assert (letter.key, letter.value) == (b"b", b"5000")
