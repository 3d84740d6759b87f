"""Keys are their serialized bytes on Spark too: over partitions, stages and restarts."""

import json
from pathlib import Path
from typing import Any

from thulawa.brokers.embedded import Log, ProducerRecord
from thulawa.core.serdes import Serdes
from thulawa.runtime.handlers import Handlers, log_and_continue
from thulawa.runtime.task_options import TaskOptions
from thulawa.spark.application import Streams
from thulawa.streams import Consumed, Grouped, Materialized, Produced, StreamsBuilder
from thulawa.topology.topology import Topology

_LONG: Consumed[Any, Any] = Consumed(key_serde=Serdes.long())
_ROWS = 20


def produce(address: str, topic: str, records: list[tuple[bytes | None, bytes]]) -> None:
    with Log(address) as log:
        if topic not in log.topics():
            log.create_topic(topic, partitions=4)
        log.append({topic: [ProducerRecord(key, value, timestamp=1) for key, value in records]})


def read(address: str, topic: str) -> dict[bytes | None, Any]:
    """Return the last value of each key."""
    found: dict[bytes | None, Any] = {}
    with Log(address) as log:
        for partition, end in log.end_offsets(topic).items():
            for columns in log.read_columns(topic, partition, 0, end):
                for key, value in zip(columns.keys, columns.values, strict=True):
                    found[key] = None if value is None else json.loads(value)
    return found


def run(topology: Topology, address: str, spark: Any, folder: Path) -> None:
    app = Streams(
        topology,
        application_id="keys",
        log=address,
        checkpoint=str(folder / "checkpoint"),
        spark=spark,
        options=TaskOptions(handlers=Handlers(processing=log_and_continue)),
    )
    with app:
        app.process_all_available()
        app.process_all_available()  # what a foreign-key join sends back comes with a later batch


def test_a_foreign_key_join_of_numbers_finds_every_row(tmp_path: Path, spark: Any) -> None:
    address = f"file:{tmp_path / 'topics'}"
    builder = StreamsBuilder()
    orders, users = builder.table("orders", _LONG), builder.table("users", _LONG)
    joined = orders.join(users, lambda order, user: [order, user], foreign_key=lambda order: order)
    joined.to_stream().to("out", Produced(key_serde=Serdes.long()))
    number = Serdes.long().dumps
    produce(address, "users", [(number(n) or b"", b"%d" % (n * n)) for n in range(_ROWS)])
    produce(address, "orders", [(number(n) or b"", b"%d" % (_ROWS - 1 - n)) for n in range(_ROWS)])
    run(builder.build(), address, spark, tmp_path)
    assert read(address, "out") == {
        number(n): [_ROWS - 1 - n, (_ROWS - 1 - n) ** 2] for n in range(_ROWS)
    }


def test_records_are_counted_by_keys_that_are_objects_over_a_restart(
    tmp_path: Path, spark: Any
) -> None:
    """One record that cannot be a key is skipped, by the handler, and stops nothing."""
    address = f"file:{tmp_path / 'topics'}"
    builder = StreamsBuilder()
    by_place: Grouped[Any, Any] = Grouped(key_serde=Serdes.json())
    counted = builder.stream("in").group_by(lambda _, value: value["at"], by_place)
    counted.count(Materialized.as_("counts")).to_stream().to(
        "out", Produced(key_serde=Serdes.json(), value_serde=Serdes.json())
    )
    plain = builder.stream("in").group_by(lambda _, value: (value["at"],)).count()
    plain.to_stream(lambda key, _: key[0]).to("plain", Produced(key_serde=Serdes.json()))
    topology = builder.build()
    places: list[Any] = [{"shop": "a", "till": 1}, ["a", 1], 1, True, "1"]
    records = [(b"k", json.dumps({"at": place}).encode()) for place in places]
    for _ in range(2):
        produce(address, "in", [*records, (b"k", b'{"at": "\\ud800"}'), *records])
        run(topology, address, spark, tmp_path)
    expected = {Serdes.json().dumps(place): 4 for place in places}
    assert (read(address, "out"), read(address, "plain")) == (expected, expected)
