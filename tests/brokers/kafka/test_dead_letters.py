"""Dead letters of `map_by_key` in Kafka: each row is set aside once, whatever is run again."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.brokers.kafka.helpers import fill, read
from tests.spark.map_by_key.test_dead_letters import failing, of_topic, run
from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.topics import Topics, TopicSpec
from thulawa.spark.connectors.kafka_source import kafka_source
from thulawa.spark.map_by_key import worker
from thulawa.spark.map_by_key.api import map_by_key
from thulawa.spark.map_by_key.dead_letters import DeadLetterTopic, RowIdentity, dead_letter_topic
from thulawa.spark.task_context import SparkTask

pytestmark = pytest.mark.timeout(600)  # a broker and Spark are started within the first

_QUERY = "0b0f2c1e-query"
_BY_RECORD = RowIdentity("record")


@pytest.fixture
def dead(connection: Connection, topics: Topics, name: str) -> DeadLetterTopic:
    topics.ensure(f"{name}-dead", TopicSpec(partitions=2))
    return dead_letter_topic(f"kafka://{connection.bootstrap}#{name}-dead")


def set_aside(connection: Connection, dead: DeadLetterTopic) -> list[int]:
    found = (json.loads(message.value() or b"") for message in read(connection, dead.topic))
    return sorted(row["n"] for row in found)


def test_rows_are_set_aside_once_in_whichever_task_their_batch_is_run_again(
    connection: Connection, dead: DeadLetterTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attempt(task: int, function: Any, rows: list[dict[str, Any]]) -> list[Any]:
        monkeypatch.setattr(worker, "current_task", lambda: SparkTask(task, _QUERY, 4))
        return run(None, function, rows, row_identity=_BY_RECORD, dead_letters=dead)

    attempt(0, failing(10, 20), of_topic(0, 50))
    attempt(1, failing(70), of_topic(50, 100))
    out = attempt(0, failing(30), of_topic(50, 100)) + attempt(1, failing(30), of_topic(0, 50))
    assert set_aside(connection, dead) == [10, 20, 30, 70]
    assert sorted(out) == [number for number in range(100) if number not in (10, 20, 30, 70)]


def test_an_attempt_that_was_killed_while_it_wrote_is_repeated_without_waiting_for_its_transaction(
    connection: Connection, dead: DeadLetterTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-m", "tests.brokers.kafka.killed_attempt"]
    with subprocess.Popen(
        [*command, dead.broker.address, dead.topic, _QUERY], stdout=subprocess.PIPE
    ) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == b"written\n"
        killed.send_signal(signal.SIGKILL)
    monkeypatch.setattr(worker, "current_task", lambda: SparkTask(0, _QUERY, 4))
    began = time.monotonic()
    run(None, failing(10), of_topic(0, 50), row_identity=_BY_RECORD, dead_letters=dead)
    assert time.monotonic() - began < 14, "the transaction is aborted after 15 s"
    assert set_aside(connection, dead) == [10]


def test_a_streaming_query_sets_rows_aside_in_kafka(
    spark: SparkSession,
    connection: Connection,
    topics: Topics,
    dead: DeadLetterTopic,
    name: str,
    tmp_path: Path,
) -> None:
    topics.ensure(f"{name}-in", TopicSpec(partitions=2))
    fill(connection, f"{name}-in", range(40))

    async def tenfold(row: Any) -> int:
        number = int(row.value)
        if number % 10 == 3:
            raise LookupError(f"no to {number}")
        return number * 10

    rows = kafka_source(spark, connection, f"{name}-in").transform(
        map_by_key(
            tenfold,
            key="key",
            returns="n long",
            on_error="dead_letter",
            dead_letters=f"{dead.broker.address}#{dead.topic}",
        )
    )
    seen: list[list[int]] = []

    def collect(batch: DataFrame, _: int) -> None:
        seen.append(sorted(row.n for row in batch.collect()))
        if len(seen) == 1:
            raise OSError("interrupted")

    def start() -> None:
        query = rows.writeStream.foreachBatch(collect).option(
            "checkpointLocation", str(tmp_path / "cp")
        )
        query.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(StreamingQueryException, match="interrupted"):
        start()
    start()
    expected = [number * 10 for number in range(40) if number % 10 != 3]
    assert seen == [expected, expected]
    values = sorted(json.loads(one.value() or b"")["value"] for one in read(connection, dead.topic))
    assert values == ["13", "23", "3", "33"]
