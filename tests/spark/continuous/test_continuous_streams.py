"""Continuous applications on Spark: exactly once over restarts, on both brokers."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from thulawa.brokers.port import Broker, open_broker, read_to_end
from thulawa.core.types import ProducerRecord
from thulawa.errors import ConfigurationError, QueryFailed, StateError
from thulawa.runtime.application_states import State
from thulawa.spark.application import Streams
from thulawa.streams.streams_builder import StreamsBuilder
from thulawa.topology.topology import Topology


def continuous(topology: Topology, **options: Any) -> Any:
    return Streams(topology, execution="continuous", **options)


def visits(numbers: range) -> list[ProducerRecord]:
    return [
        ProducerRecord(str(number).encode(), json.dumps({"user": f"u{number % 7}"}).encode())
        for number in numbers
    ]


def counting() -> Topology:
    async def look_up(value: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(0.02)
        return value

    builder = StreamsBuilder()
    stream = builder.stream("visits").map_values_async(look_up)
    stream.group_by(lambda _, value: value["user"]).count().to_stream().to("counts")
    return builder.build()


def outputs(broker: Broker) -> tuple[int, dict[bytes | None, int]]:
    records = list(read_to_end(broker, "counts"))
    return len(records), {record.key: int(record.value or b"0") for record in records}


def expected(count: int) -> dict[bytes, int]:
    return dict(Counter(f"u{number % 7}".encode() for number in range(count)))


@pytest.mark.timeout(180)
def test_calls_and_counts_are_exactly_once_over_a_restart(spark: Any, tmp_path: Path) -> None:
    address = f"file:{tmp_path}/topics"
    broker = open_broker(address)
    broker.create_topic("visits", 2)
    broker.create_topic("counts", 2)
    for first in (0, 300):
        with continuous(counting(), application_id="app", log=address, spark=spark) as app:
            broker.append("visits", visits(range(first, first + 300)))
            app.process_all_available("1 minute")
    assert outputs(broker) == (600, expected(600))


@pytest.mark.timeout(180)
def test_results_are_visible_within_milliseconds(spark: Any, tmp_path: Path) -> None:
    address = f"file:{tmp_path}/topics"
    broker = open_broker(address)
    broker.create_topic("in")
    broker.create_topic("out")
    builder = StreamsBuilder()
    builder.stream("in").map_values(lambda value: value + 1).to("out")
    with continuous(
        builder.build(),
        application_id="fast",
        log=address,
        spark=spark,
        processing_guarantee="at_least_once",
    ):
        seen = []
        for number in range(20):
            start = time.monotonic()
            broker.append("in", [ProducerRecord(b"k", b"%d" % number)])
            while broker.end_offsets("out")["out"][0] <= number:
                time.sleep(0.001)
            seen.append(time.monotonic() - start)
    assert sorted(seen)[len(seen) // 2] < 1.0  # no micro-batch; how fast it is, benchmarks say


@pytest.mark.timeout(180)
def test_an_error_of_a_function_ends_the_application_with_one_error(
    spark: Any, tmp_path: Path
) -> None:
    address = f"file:{tmp_path}/topics"
    broker = open_broker(address)
    broker.create_topic("in")
    broker.create_topic("out")
    builder = StreamsBuilder()
    builder.stream("in").map_values(lambda value: 1 // value).to("out")
    app = continuous(builder.build(), application_id="bad", log=address, spark=spark)
    broker.append("in", [ProducerRecord(b"k", b"0")])
    with app, pytest.raises(QueryFailed, match=r"ZeroDivisionError|ProcessingError"):
        app.process_all_available("1 minute")


def test_more_parallelism_than_cores_is_rejected_with_the_numbers(
    spark: Any, tmp_path: Path
) -> None:
    address = f"file:{tmp_path}/topics"
    open_broker(address).create_topic("visits", 2)
    app = continuous(counting(), application_id="wide", log=address, spark=spark, parallelism=99)
    with pytest.raises(ConfigurationError, match=r"parallelism=99 needs .* Spark has"):
        app.start()


def test_a_changed_topology_and_a_change_of_execution_are_rejected(
    spark: Any, tmp_path: Path
) -> None:
    address = f"file:{tmp_path}/topics"
    broker = open_broker(address)
    broker.create_topic("visits", 2)
    broker.create_topic("counts", 2)
    with continuous(counting(), application_id="app", log=address, spark=spark):
        pass
    builder = StreamsBuilder()
    builder.stream("visits").group_by_key().count().to_stream().to("counts")
    with pytest.raises(StateError, match="the topology of 'app' has changed"):
        continuous(builder.build(), application_id="app", log=address, spark=spark).start()
    with pytest.raises(StateError, match="has run with execution='continuous'"):
        Streams(counting(), application_id="app", log=address, spark=spark).start()
    broker.delete_topic("visits")
    broker.create_topic("visits", 2)
    with pytest.raises(StateError, match="'visits' was deleted since the last run"):
        continuous(counting(), application_id="app", log=address, spark=spark).start()


def test_options_of_micro_batches_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="max_records is an option of micro-batches"):
        continuous(counting(), application_id="app", log=f"file:{tmp_path}", max_records=5)


@pytest.mark.timeout(180)
def test_the_states_the_lag_and_a_reset_are_as_with_micro_batches(
    spark: Any, tmp_path: Path
) -> None:
    address = f"file:{tmp_path}/topics"
    broker = open_broker(address)
    broker.create_topic("visits", 2)
    broker.create_topic("counts", 2)
    app = continuous(counting(), application_id="app", log=address, spark=spark)
    seen: list[State] = []
    app.add_state_listener(lambda new, _: seen.append(new))
    assert isinstance(app, Streams)
    assert app.lag() == {}
    with app:
        broker.append("visits", visits(range(50)))
        app.process_all_available("1 minute")
        assert sum(sum(partitions.values()) for partitions in app.lag().values()) == 0
        with pytest.raises(ConfigurationError, match="is running; stop it first"):
            app.reset()
        with pytest.raises(ConfigurationError, match=r"has no store\(\) yet"):
            app.store("counts")
    _until(lambda: app.state is State.NOT_RUNNING)
    assert seen == [
        State.REBALANCING, State.RUNNING, State.PENDING_SHUTDOWN, State.NOT_RUNNING
    ]  # fmt: skip
    with pytest.raises(ConfigurationError, match="has been started already"):
        app.start()
    app.reset()
    assert broker.topics() == ["counts", "visits"]
    assert broker.committed("app").offsets == {}


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
