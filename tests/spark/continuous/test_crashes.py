"""Hosts that crash at random moments lose and duplicate nothing, with calls in flight."""

import asyncio
import json
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.conformance.continuous import ThreadHosts
from thulawa.brokers.port import open_broker, read_to_end
from thulawa.core.types import ProducerRecord
from thulawa.runtime.task_options import TaskOptions
from thulawa.spark.continuous.continuous_streams import (
    await_processed,
    build_program,
    create_internal_topics,
)
from thulawa.spark.continuous.host import Host
from thulawa.spark.continuous.previous_run import check_previous_run, record_run
from thulawa.streams import KStream, StreamsBuilder
from thulawa.topology.topology import Topology

RECORDS, KEYS = 1_500, 12


async def call(value: Any) -> Any:
    await asyncio.sleep(random.random() * 0.02)
    return value


def calls_only(stream: KStream[Any, Any]) -> None:
    stream.map_values_async(call).to("out")


def calls_then_counts(stream: KStream[Any, Any]) -> None:
    counts = stream.filter(lambda _, value: value is not None).map_values_async(call)
    counts.group_by_key().count().to_stream().to("out")


def counts_then_calls(stream: KStream[Any, Any]) -> None:
    stream.group_by_key().count().to_stream().map_values_async(call).to("out")


def calls_behind_a_repartition(stream: KStream[Any, Any]) -> None:
    other = stream.map_values_async(call).select_key(lambda key, _: f"{key}!")
    other.group_by_key().count().to_stream().map_values_async(call).to("out")


def topology(program: Callable[[KStream[Any, Any]], None]) -> Topology:
    builder = StreamsBuilder()
    program(builder.stream("in"))
    return builder.build()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    "program", [calls_only, calls_then_counts, counts_then_calls, calls_behind_a_repartition]
)
def test_crashes_lose_duplicate_and_reorder_nothing(
    program: Callable[[KStream[Any, Any]], None], seed: int, tmp_path: Path
) -> None:
    draw = random.Random(seed)
    broker = open_broker(f"file:{tmp_path}/topics")
    broker.create_topic("in", 3)
    broker.create_topic("out", 3)
    made = build_program(
        topology(program),
        broker,
        application_id="app",
        options=TaskOptions(commit="batch"),
        hosts=lambda tasks: min(2, tasks),
        commit_interval=0.02,
    )
    create_internal_topics(made)
    per_key = dict.fromkeys((f"k{number}" for number in range(KEYS)), 0)
    sent = 0
    hosts = _started(made)
    while sent < RECORDS:
        records = []
        for _ in range(min(RECORDS - sent, draw.randint(1, 150))):
            key = draw.choice(list(per_key))
            per_key[key] += 1
            records.append(ProducerRecord(key.encode(), json.dumps(per_key[key]).encode()))
        broker.append("in", records)
        sent += len(records)
        time.sleep(draw.random() * 0.15)
        if draw.random() < 0.4:
            hosts.cancel() if draw.random() < 0.7 else hosts.stop()
            hosts = _started(made)
    await_processed(made, hosts, time.monotonic() + 60)
    hosts.stop()
    found: dict[str, list[int]] = {}
    for record in read_to_end(broker, "out"):
        key = (record.key or b"").decode().rstrip("!")
        found.setdefault(key, []).append(json.loads(record.value or b"0"))
    assert found == {key: list(range(1, count + 1)) for key, count in per_key.items() if count}


def _started(program: Any) -> ThreadHosts:
    started = replace(program, run=uuid4().hex)
    check_previous_run(started)
    record_run(started)
    return ThreadHosts(started, None)


def test_a_host_that_is_stopped_while_it_starts_ends(tmp_path: Path) -> None:
    broker = open_broker(f"file:{tmp_path}/topics")
    broker.create_topic("in", 3)
    broker.create_topic("out", 3)
    made = build_program(
        topology(counts_then_calls),
        broker,
        application_id="app",
        options=TaskOptions(commit="batch"),
        hosts=lambda _: 1,
    )
    create_internal_topics(made)
    host = Host(made, 0)
    host.stop()
    host.run()
