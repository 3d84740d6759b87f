"""Records of a partition stay in order from stage to stage, in whichever order rows arrive."""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.spark.dry import Input
from tests.spark.micro_batch.stage_runs import ShuffledRun
from thulawa.brokers.embedded import Log, ProducerRecord
from thulawa.core.serdes import Serdes
from thulawa.spark.application import Streams
from thulawa.spark.micro_batch import collector
from thulawa.spark.micro_batch import first_stage as front_module
from thulawa.streams import Materialized, Repartitioned, StreamsBuilder
from thulawa.topology.determinism import deterministic
from thulawa.topology.topology import Topology

PARTITIONS, RECORDS = 2, 600


def program() -> Topology:
    """Copy all records, and list them by another key, behind two repartitions."""
    builder = StreamsBuilder()
    records = builder.stream("in").map_values(lambda value: value)
    records.to("copied")
    again = records.select_key(lambda key, value: f"g{value % 5}").repartition(
        Repartitioned(partitions=3)
    )
    listed = again.group_by(lambda key, value: f"h{value % 3}").aggregate(
        list, lambda key, value, all_: [*all_, value], Materialized.as_("lists")
    )
    listed.to_stream().to("listed")
    return builder.build()


def inputs() -> dict[tuple[str, int], list[Input]]:
    return {
        ("in", partition): [
            Input(n, n, b"p%d" % partition, str(n * PARTITIONS + partition).encode())
            for n in range(RECORDS)
        ]
        for partition in range(PARTITIONS)
    }


@pytest.mark.parametrize("seed", range(5))
def test_order_survives_rows_that_arrive_in_any_order(seed: int) -> None:
    expected = ShuffledRun(program(), {"in": PARTITIONS}, None).outputs(inputs())
    found = ShuffledRun(program(), {"in": PARTITIONS}, Random(seed)).outputs(inputs())
    assert len(found["copied"]) == PARTITIONS * RECORDS
    for topic, rows in expected.items():
        assert by_key(found[topic]) == by_key(rows), topic


def by_key(rows: list[dict[str, Any]]) -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = {}
    for row in rows:
        found.setdefault(row["key"], []).append(row["value"])
    return found


@pytest.fixture
def spilling(spark: Any) -> Iterator[Any]:
    """Make every sort of Spark spill after each row."""
    name = "spark.shuffle.spill.numElementsForceSpillThreshold"
    conf = spark._jvm.org.apache.spark.SparkEnv.get().conf()
    conf.set(name, "1")
    yield spark
    conf.remove(name)


def test_order_survives_a_sort_that_spills(spilling: Any, tmp_path: Path) -> None:
    address = f"file:{tmp_path / 'topics'}"
    count = 6_000  # in stored batches of 1,000 records
    with Log(address) as log:
        log.create_topic("in", partitions=PARTITIONS)
        for partition in range(PARTITIONS):
            log.append(
                {
                    "in": [
                        ProducerRecord(b"p%d" % partition, str(n).encode(), (), n, partition)
                        for n in range(count)
                    ]
                }
            )
    builder = StreamsBuilder()
    records = builder.stream("in").map_values(lambda value: value)
    records.to("copied")
    again = records.select_key(lambda key, value: key).repartition(Repartitioned(partitions=3))
    steps = again.group_by_key().aggregate(
        lambda: [-1, 0],
        lambda key, value, last: [value, last[1] + (value != last[0] + 1)],
        Materialized.as_("breaks"),
    )
    steps.to_stream().to("steps")
    with Streams(
        builder.build(), application_id="app", log=address, spark=spilling, max_records=None
    ) as streams:
        streams.process_all_available()
    for partition in range(PARTITIONS):
        own = f"p{partition}".encode()
        assert [value for key, value in values(address, "copied") if key == own] == [*range(count)]
        steps_of_own = [value for key, value in values(address, "steps") if key == own]
        assert steps_of_own[-1] == [count - 1, 0]


def values(address: str, topic: str) -> list[tuple[bytes | None, Any]]:
    with Log(address) as log:
        return [
            (record.key, json.loads(record.value or b""))
            for partition, end in log.end_offsets(topic).items()
            for record in log.read(topic, partition, 0, end)
        ]


def test_a_batch_that_fans_out_is_cut_into_rows_of_bounded_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bound = 100_000
    monkeypatch.setattr(collector, "ROW_BYTES", bound)
    monkeypatch.setattr(front_module, "_BUNDLE_BYTES", bound)

    @deterministic
    def fanned(value: int) -> list[dict[str, Any]]:
        noise = Random(value)
        return [{"from": value, "n": n, "text": noise.randbytes(4_000).hex()} for n in range(50)]

    builder = StreamsBuilder()
    many = builder.stream("in").flat_map_values(fanned).select_key(lambda key, value: value["from"])
    once = many.repartition(Repartitioned(partitions=3, key_serde=Serdes.json()))
    again = once.select_key(lambda key, value: "all").repartition(Repartitioned(partitions=1))
    kept = again.group_by_key().aggregate(
        list, lambda key, value, all_: [*all_, (value["from"], value["n"])]
    )
    kept.to_stream().to("out")
    run = ShuffledRun(builder.build(), {"in": 1}, Random(3))
    records = [Input(n, n, b"k", str(n).encode()) for n in range(20)]
    last = json.loads(run.outputs({("in", 0): records})["out"][-1]["value"])
    assert sorted(last) == [[n, m] for n in range(20) for m in range(50)]
    for number in range(20):
        assert [m for n, m in last if n == number] == list(range(50))
    assert len(run.rows) > 2 * 20 * 50 * 8_000 / bound
    assert max(len(row.data) for row in run.rows) <= bound
    assert max(run.bundles) <= 2 * bound
