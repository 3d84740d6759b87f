"""Joins are synchronised by default: Kafka's idle rule over batches, limits and restarts."""

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from tests.spark.dry import DryQuery
from thulawa.brokers.embedded import Log, ProducerRecord
from thulawa.brokers.embedded.batches import Columns
from thulawa.core.partitioning import partition_of
from thulawa.runtime.task_options import TaskOptions
from thulawa.spark.connectors.chunks import Behind, Chunk
from thulawa.spark.connectors.log_source import LogReader, SourcePartition
from thulawa.spark.connectors.stream_reader import LogStreamReader
from thulawa.streams import JoinWindows, StreamsBuilder
from thulawa.testing import TopologyTestDriver
from thulawa.topology.topology import Topology

PARTITIONS = 3
KEYS = [f"user-{number}" for number in range(12)]
TOPICS = ("clicks", "users")
Event = tuple[int, str, str, int]  # timestamp, topic, key, value


def stream_table() -> Topology:
    builder = StreamsBuilder()
    users = builder.table("users")
    builder.stream("clicks").left_join(users, lambda click, user: [click, user]).to("out")
    return builder.build()


def rekeyed() -> Topology:
    """Return a join whose stream comes by a shuffle: it waits for the table, and the table not."""
    builder = StreamsBuilder()
    users = builder.table("users")
    clicks = builder.stream("clicks").select_key(lambda key, value: key)
    clicks.left_join(users, lambda click, user: [click, user]).to("out")
    return builder.build()


def stream_stream() -> Topology:
    builder = StreamsBuilder()
    windows = JoinWindows.of("20 ms")
    clicks = builder.stream("clicks")
    clicks.join(builder.stream("users"), lambda click, user: [click, user], windows).to("out")
    return builder.build()


def merged() -> Topology:
    builder = StreamsBuilder()
    builder.stream("clicks").merge(builder.stream("users")).to("out")
    return builder.build()


PROGRAMS = [stream_table, rekeyed, stream_stream, merged]


def events(random: Random, *, interleaved: bool = True) -> list[Event]:
    """Make records in the order of their time; a table that is large and early, or interleaved."""
    late = random.choice([0, 5_000]) if interleaved else 5_000
    made = [
        (random.randrange(4_000) + (late if topic == "clicks" else 0), topic, random.choice(KEYS))
        for topic, most in (("clicks", 80), ("users", 160))
        for _ in range(random.randrange(1, most))
    ]
    # at one time, topics are taken by their names
    ordered = sorted(set(made), key=lambda one: (one[0], one[1]))
    return [(*one, number) for number, one in enumerate(ordered)]


def expected(topology: Topology, made: list[Event]) -> dict[str, list[Any]]:
    with TopologyTestDriver(topology) as driver:
        topics = {topic: driver.create_input_topic(topic) for topic in TOPICS}
        for time, topic, key, value in made:
            topics[topic].pipe_input(key, value, time)
        out = driver.create_output_topic("out").read_records_to_list()
    return by_key((record.key, record.value) for record in out)


def by_key(pairs: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = defaultdict(list)
    for key, value in pairs:
        found[key].append(list(value) if isinstance(value, tuple) else value)
    return found


def append(log: Log, made: list[Event]) -> None:
    for time, topic, key, value in made:
        place = partition_of(key.encode(), PARTITIONS)
        record = ProducerRecord(key.encode(), json.dumps(value).encode(), (), time, place)
        log.append({topic: [record]})


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log(f"file:{tmp_path / 'topics'}") as made:
        for topic in TOPICS:
            made.create_topic(topic, partitions=PARTITIONS)
        yield made


def _read(reader: LogReader, one: SourcePartition) -> list[Chunk | Behind]:
    return [*one.behind, *reader.chunks(one.ranges)]


def run(log: Log, query: DryQuery, most: int, random: Random) -> Iterator[tuple[Any, int]]:
    """Run a query as Spark does, with attempts that fail and workers that are lost.

    Give what leaves with each batch, and how many records wait after it.
    """
    reader = LogReader.of({"path": log.address, "subscribe": ",".join(TOPICS)})
    program = query.program()
    source = LogStreamReader(
        reader, most, ordered_groups=program.ordered_groups, paced_groups=program.paced_groups
    )
    start: dict[str, Any] = source.initialOffset()
    while (end := source.latestOffset(start, ReadMaxRows(most))) != start:
        dealt = source.partitions(start, end)
        read = [_read(reader, one) for one in dealt]
        for _ in range(random.choice([0, 0, 1])):
            query.attempt_read(read)
        if random.random() < 0.3:
            query.restart()
        rows, query.state = query.attempt_read(read)
        yield [(row["key"].decode(), json.loads(row["value"])) for row in rows], query.held()
        start = end


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("program", PROGRAMS)
def test_records_meet_as_if_each_had_come_in_the_order_of_its_time(
    log: Log, program: Any, seed: int
) -> None:
    random = Random(f"{program.__name__} {seed}")
    made = events(random, interleaved=program is not rekeyed)
    append(log, made)
    options = TaskOptions(commit="batch")
    query = DryQuery(program(), dict.fromkeys(TOPICS, PARTITIONS), options)
    most = random.choice([1, 5, 20])
    found = by_key(pair for out, _ in run(log, query, most, random) for pair in out)
    assert found == expected(program(), made)


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_more_records_wait_than_a_few_batches_have(log: Log, program: Any) -> None:
    early = [(number, "users", KEYS[number % 12], number) for number in range(1_500)]
    late = [(9_000 + number, "clicks", KEYS[number % 12], number) for number in range(1_500)]
    append(log, early + late)
    query = DryQuery(program(), dict.fromkeys(TOPICS, PARTITIONS), TaskOptions(commit="batch"))
    held = [waiting for _, waiting in run(log, query, 60, Random(1))]
    assert max(held) <= 120
    assert held[-1] == 0
    assert len(held) <= 60, "limits are used up"


def test_topics_whose_records_alternate_are_read_alike(log: Log) -> None:
    made = [(n, TOPICS[n // 3 % 2], KEYS[n % 12], n) for n in range(1_200)]
    append(log, made)
    options = TaskOptions(commit="batch")
    query = DryQuery(stream_stream(), dict.fromkeys(TOPICS, PARTITIONS), options)
    held = [waiting for _, waiting in run(log, query, 120, Random(1))]
    assert max(held) <= 90
    assert len(held) <= 13


def test_nothing_is_noted_or_told_where_a_task_reads_one_topic(log: Log) -> None:
    builder = StreamsBuilder()
    builder.stream("clicks").group_by_key().count().to_stream().to("out")
    widths = dict.fromkeys(TOPICS, PARTITIONS)
    alone = DryQuery(builder.build(), widths).program()
    assert (alone.ordered_groups, alone.paced_groups) == ([], [])
    joined = DryQuery(stream_table(), widths).program()
    assert joined.ordered_groups == [{"clicks": (n,), "users": (n,)} for n in range(PARTITIONS)]
    assert joined.paced_groups == joined.ordered_groups
    shuffled = DryQuery(rekeyed(), widths).program()
    assert shuffled.ordered_groups == [{"users": (n,)} for n in range(PARTITIONS)]
    assert shuffled.paced_groups[-1] == dict.fromkeys(("clicks", "users"), tuple(range(PARTITIONS)))
    never = DryQuery(stream_table(), widths, TaskOptions(max_task_idle=None)).program()
    assert (never.ordered_groups, never.paced_groups) == ([], [])


def test_a_task_is_told_of_repartition_topics_as_of_other_inputs() -> None:
    chance = Random(1)
    builder = StreamsBuilder()
    users = builder.table("users")
    clicks = builder.stream("clicks").select_key(lambda key, value: f"{key}{chance.random()}")
    clicks.join(users, lambda click, user: [click, user]).to("out")
    query = DryQuery(builder.build(), dict.fromkeys(TOPICS, 1), TaskOptions(commit="batch"))
    program = query.program()
    (inner,) = program.internal_topics
    assert program.ordered_groups == [{"users": (0,), inner: (0,)}]
    user = Chunk("users", 0, 0, Columns([0], [5], [b"u"], [b"1"], [()]))
    _, query.state = query.attempt_read([[Behind(inner, 0, behind=True), user]])
    assert query.held() == 1
    query.restart()
    _, query.state = query.attempt_read([[Behind(inner, 0, behind=False)]])
    assert query.held() == 0
