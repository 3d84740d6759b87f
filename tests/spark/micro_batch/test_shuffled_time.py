"""Stream time behind a shuffle: no record is late there that was on time where it was read."""

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.spark import dry
from tests.spark.dry import DryQuery, Input
from thulawa.streams import Grouped, KStream, StreamsBuilder, TimeWindows, Topology
from thulawa.testing import seeds

PARTITIONS, RECORDS, BATCHES = 3, 1_880, 4
Lookup = Callable[[KStream[Any, Any]], KStream[Any, Any]]


def plain(stream: KStream[Any, Any]) -> KStream[Any, Any]:
    return stream


def service(stream: KStream[Any, Any]) -> KStream[Any, Any]:
    """Return the same values, each after a random time."""
    chance = random.Random(1)

    async def wait(value: Any) -> Any:
        await asyncio.sleep(chance.expovariate(500))
        return value

    return stream.map_values_async(wait, in_flight=200)


def views_per_page(lookup: Lookup) -> Topology:
    builder = StreamsBuilder()
    grouped = lookup(builder.stream("visits")).group_by(lambda _, page: page, Grouped())
    window = TimeWindows.of("10 s", grace="5 s")
    grouped.windowed_by(window).count().to_stream().to("views")
    return builder.build()


def visits(seed: int) -> list[dict[tuple[str, int], list[Input]]]:
    """Return batches of visits, in order in each partition, a minute and a half in all."""
    chance = random.Random(seed)
    offsets = dict.fromkeys(range(PARTITIONS), 0)
    batches = []
    for number in range(BATCHES):
        batch: dict[tuple[str, int], list[Input]] = {("visits", p): [] for p in offsets}
        for n in range(number * RECORDS // BATCHES, (number + 1) * RECORDS // BATCHES):
            partition = chance.randrange(PARTITIONS)
            page = json.dumps(f"/{chance.randrange(5)}").encode()
            visit = Input(offsets[partition], n * 50, b"visitor", page)
            batch["visits", partition].append(visit)
            offsets[partition] += 1
        batches.append(batch)
    return batches


def through_shuffles(query: DryQuery) -> DryQuery:
    """Make the repartitions of a program shuffles, as they are under at_least_once."""
    repartitions = {
        name: replace(one, is_topic=False) for name, one in query.plan.repartitions.items()
    }
    query.plan = replace(query.plan, repartitions=repartitions)
    query.restart()
    return query


@pytest.mark.parametrize("seed", seeds(3))
def test_it_is_so_if_the_repartition_is_a_topic(seed: int) -> None:
    query = DryQuery(views_per_page(service), {"visits": PARTITIONS})
    assert all(one.is_topic for one in query.plan.repartitions.values())
    counts: dict[bytes, int] = {}
    waiting: dict[tuple[str, int], list[Input]] = {}
    for batch in (*visits(seed), {}):
        rows = query.batch({**batch, **waiting})
        waiting = {}
        for row in rows:
            if row["topic"] == "views":
                counts[row["key"]] = json.loads(row["value"])
            else:
                time = row["timestamp"]
                place = waiting.setdefault((row["topic"], row["partition"]), [])
                record = Input(len(place), int(time.timestamp() * 1000), row["key"], row["value"])
                place.append(record._replace(headers=row["headers"]))
        query.restart()
    assert sum(counts.values()) == RECORDS


@pytest.mark.parametrize("lookup", [plain, service])
@pytest.mark.parametrize("seed", seeds(3))
def test_every_visit_is_counted_whichever_task_read_it(lookup: Lookup, seed: int) -> None:
    query = through_shuffles(DryQuery(views_per_page(lookup), {"visits": PARTITIONS}))
    counts: dict[bytes, int] = {}
    for batch in visits(seed):
        counts |= {row["key"]: json.loads(row["value"]) for row in query.batch(batch)}
        query.restart()
    assert sum(counts.values()) == RECORDS


def test_the_records_of_one_task_stay_in_order_over_several_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = dry.source_chunks

    def in_parts(inputs: Any) -> Any:
        for place, records in inputs.items():
            for at in range(0, len(records), 10):
                yield from source({place: records[at : at + 10]})

    monkeypatch.setattr(dry, "source_chunks", in_parts)
    builder = StreamsBuilder()
    grouped = builder.stream("visits").group_by(lambda _, n: "all")
    grouped.aggregate(list, lambda _, n, seen: [*seen, n]).to_stream().to("out")
    query = DryQuery(builder.build(), {"visits": 1})
    chance = random.Random(5)
    times = [chance.randrange(1_000) for _ in range(95)]  # in no order
    inputs = [Input(n, time, b"k", str(n).encode()) for n, time in enumerate(times)]
    *_, last = query.batch({("visits", 0): inputs})
    assert json.loads(last["value"]) == list(range(95))
