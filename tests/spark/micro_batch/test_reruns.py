"""Batches that are cut off between two commits and run again, with functions that answer anew."""

import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.spark.dry import DryQuery, Input
from thulawa.brokers.embedded.batches import unpack
from thulawa.core.partitioning import partition_of
from thulawa.spark.micro_batch.wire import ANY
from thulawa.streams import Grouped, Materialized, StreamsBuilder, deterministic
from thulawa.topology.topology import Topology

COUNTRIES = ("LK", "US", "DE", "FR", "CH", "JP", "BR")
PARTITIONS = 3
Declare = Callable[[Callable[..., Any]], Callable[..., Any]]


def program(draw: random.Random, declare: Declare) -> Topology:
    """List ids by a country that is another each time it is asked for, twice over."""

    def country(key: Any, value: Any) -> str:
        return draw.choice(COUNTRIES)

    builder = StreamsBuilder()
    for step in ("first", "second"):
        source = builder.stream("in" if step == "first" else "between")
        listed = source.group_by(declare(country), Grouped(name=step)).aggregate(
            list, lambda key, value, ids: [*ids, value], Materialized.as_(step)
        )
        last = listed.to_stream().map_values(lambda ids: ids[-1])
        last.to("between" if step == "first" else "out")
    return builder.build()


class Reruns:
    """Topics, and a query whose batches are cut off after any of the sink's tasks."""

    def __init__(self, topology: Topology, draw: random.Random) -> None:
        self._draw = draw
        self._query = DryQuery(topology, {"in": PARTITIONS, "between": PARTITIONS})
        self.topics: dict[tuple[str, int], list[Input]] = {}
        self._read: dict[tuple[str, int], int] = {}
        self.cut_off = 0

    def run(self) -> None:
        while any(len(records) > self._read.get(place, 0) for place, records in self._inputs()):
            self._batch()

    def _inputs(self) -> list[tuple[tuple[str, int], list[Input]]]:
        return [(place, records) for place, records in self.topics.items() if place[0] != "out"]

    def _batch(self) -> None:
        inputs, ends = {}, {}
        for place, records in self._inputs():
            start = self._read.get(place, 0)
            ends[place] = self._draw.randint(start, len(records))
            inputs[place] = records[start : ends[place]]
        written: set[int] = set()
        while True:
            rows, state = self._query.attempt_packed(inputs)
            left = [slot for slot in self._query.slots if slot not in written]
            self._draw.shuffle(left)
            for slot in left[: self._draw.randint(0, len(left))]:
                self._write([row for row in rows if row.slot == slot])
                written.add(slot)
            if written == {*self._query.slots}:
                break
            self.cut_off += 1
            self._query.restart()
        self._query.state = state
        self._read |= ends

    def _write(self, rows: list[Any]) -> None:
        for row in rows:
            for _, time, key, value, _ in unpack(row.data, 0).rows():
                part = partition_of(key, PARTITIONS) if row.part == ANY else row.part
                records = self.topics.setdefault((row.topic, part), [])
                records.append(Input(len(records), time, key, value))


def ids(topics: dict[tuple[str, int], list[Input]], topic: str) -> Counter[int]:
    return Counter(
        json.loads(record.value or b"")
        for (name, _), records in topics.items()
        if name == topic
        for record in records
    )


def run(seed: int, declare: Declare) -> Reruns:
    draw = random.Random(seed)
    made = Reruns(program(draw, declare), draw)
    for number in range(200):
        records = made.topics.setdefault(("in", number % PARTITIONS), [])
        records.append(Input(len(records), number, b"k", str(number).encode()))
    made.run()
    return made


@pytest.mark.parametrize("seed", range(8))
def test_every_record_passes_once_whatever_the_functions_answer(seed: int) -> None:
    made = run(seed, lambda function: function)
    assert made.cut_off > 5
    for topic in ("between", "out"):
        assert ids(made.topics, topic) == Counter(range(200)), topic


def test_a_false_declaration_is_seen_here() -> None:
    broken = [run(seed, deterministic) for seed in range(3)]
    assert any(ids(made.topics, "between") != Counter(range(200)) for made in broken)
