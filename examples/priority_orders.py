"""Orders of Platinum and Gold customers, three times as many as can be shipped.

The story of the bucket priority pattern, on Spark: ``python examples/priority_orders.py`` in a
folder of topics, with ``--kafka`` on a broker (``THULAWA_KAFKA``, or one that is started here).
Three times the same orders come, and each time a query ships them: without priorities, with buckets
by weight, and strictly Platinum first. A picture shows how long orders took, from the moment they
were placed to the moment they were shipped.
"""

import argparse
import asyncio
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import thulawa
import thulawa.priority
from examples.demo.chart import Bar, Chart
from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.reading import read_to_end
from thulawa.brokers.kafka.topics import Topics, TopicSpec
from thulawa.brokers.kafka.transactions import SinkSpec
from thulawa.dev.kafka_broker import DevBroker
from thulawa.priority.kafka_clients import BucketProducer
from thulawa.spark.connectors.kafka_sink import FORMAT, connection_options, kafka_sink, register
from thulawa.spark.connectors.log_sink import log_sink

BUCKETS = thulawa.priority.Buckets({"Platinum": 70, "Gold": 30}, delimiter="-")
PARTITIONS = 6
PER_TRIGGER = 100  # orders that can be shipped in a second: a trigger's worth
RATES = {"Platinum": 0.3 * PER_TRIGGER, "Gold": 2.7 * PER_TRIGGER}
COLOURS = {"Platinum": "#3b6fb5", "Gold": "#d9a441"}


@dataclass(frozen=True)
class Arm:
    """One of the three ways: where orders are put, and how they are taken."""

    name: str
    source: dict[str, str]
    lanes: thulawa.engine.Lanes | None


ARMS = [
    Arm("none", {}, None),
    Arm("weighted", {"buckets": BUCKETS.text}, thulawa.engine.Lanes.of(BUCKETS)),
    Arm(
        "strict",
        {"buckets": BUCKETS.text, "bucketOrder": "strict"},
        thulawa.engine.Lanes.of(BUCKETS, strict=True, ageing=5.0),
    ),
]


class Place(Protocol):
    """Where the topics are: a folder, or a broker."""

    def create(self, topic: str, partitions: int) -> None:
        """Make a topic."""

    def sender(self, topic: str, *, in_buckets: bool) -> Callable[[list[tuple[str, str]]], None]:
        """Give what sends keys and values to a topic."""

    def source(self, spark: SparkSession, topic: str, options: dict[str, str]) -> DataFrame:
        """Read a topic."""

    def sink(self, rows: DataFrame, topic: str) -> DataStreamWriter:
        """Write a topic."""

    def shipped(self, topic: str) -> Iterator[tuple[str, float, float]]:
        """Give key, time of order and time of shipping of what a topic holds."""


class Folder:
    """Topics of the embedded log."""

    def __init__(self, address: str) -> None:
        self._log = thulawa.embedded.Log(address)

    def create(self, topic: str, partitions: int) -> None:
        """Make a topic."""
        self._log.create_topic(topic, partitions=partitions)

    def sender(self, topic: str, *, in_buckets: bool) -> Callable[[list[tuple[str, str]]], None]:
        """Give what sends keys and values to a topic."""
        producer = self._log.producer(buckets=BUCKETS if in_buckets else None)

        def send(orders: list[tuple[str, str]]) -> None:
            for key, value in orders:
                producer.send(topic, key=key.encode(), value=value.encode())
            producer.flush()

        return send

    def source(self, spark: SparkSession, topic: str, options: dict[str, str]) -> DataFrame:
        """Read a topic."""
        reader = spark.readStream.format("thulawa").option("subscribe", topic)
        return reader.options(**options).load(self._log.address)

    def sink(self, rows: DataFrame, topic: str) -> DataStreamWriter:
        """Write a topic."""
        return log_sink(rows, self._log.address, topic=topic)

    def shipped(self, topic: str) -> Iterator[tuple[str, float, float]]:
        """Give key, time of order and time of shipping of what a topic holds."""
        for record in self._log.read(topic, 0, 0):
            yield (record.key or b"").decode(), float(record.value or 0), record.timestamp / 1_000


class Brokers:
    """Topics of Kafka."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._topics = Topics(connection)

    def create(self, topic: str, partitions: int) -> None:
        """Make a topic."""
        stamped = {"message.timestamp.type": "LogAppendTime"}
        self._topics.ensure(topic, TopicSpec(partitions=partitions, settings=stamped))

    def sender(self, topic: str, *, in_buckets: bool) -> Callable[[list[tuple[str, str]]], None]:
        """Give what sends keys and values to a topic."""
        plain = Producer({**self._connection.client(), "partitioner": "murmur2_random"})
        producer: Any = BucketProducer(plain, BUCKETS, self._connection) if in_buckets else plain

        def send(orders: list[tuple[str, str]]) -> None:
            for key, value in orders:
                producer.produce(topic, value, key)
            producer.flush()

        return send

    def source(self, spark: SparkSession, topic: str, options: dict[str, str]) -> DataFrame:
        """Read a topic."""
        register(spark)
        reader = spark.readStream.format(FORMAT).options(**connection_options(self._connection))
        return reader.option("subscribe", topic).options(**options).load()

    def sink(self, rows: DataFrame, topic: str) -> DataStreamWriter:
        """Write a topic."""
        spec = SinkSpec(connection=self._connection, application=f"priority-{topic}")
        return kafka_sink(rows, spec, topic=topic)

    def shipped(self, topic: str) -> Iterator[tuple[str, float, float]]:
        """Give key, time of order and time of shipping of what a topic holds."""
        for messages in read_to_end(self._connection, topic):
            for message in messages:
                key: Any = message.key()
                yield key.decode(), float(message.value() or 0), message.timestamp()[1] / 1_000


async def ship(order: Any) -> bytes:
    """Stand for the call that ships an order."""
    await asyncio.sleep(0.02)
    return bytes(order.value)


def placing(send: Callable[[list[tuple[str, str]]], None], over: threading.Event) -> None:
    """Place orders at their rates until it is over; their value is when they were due."""
    begun = time.time()
    placed = dict.fromkeys(RATES, 0)
    while not over.wait(0.05):
        orders = []
        for bucket, rate in RATES.items():
            while (due := begun + placed[bucket] / rate) <= time.time():
                orders.append((f"{bucket}-{placed[bucket]}", repr(due)))
                placed[bucket] += 1
        send(orders)


def run(
    spark: SparkSession, place: Place, arm: Arm, seconds: float, folder: Path
) -> dict[str, Any]:
    """Let orders come for so long, and ship them in one of the three ways."""
    orders, shipped = f"orders-{arm.name}-{folder.name}", f"shipped-{arm.name}-{folder.name}"
    place.create(orders, PARTITIONS)
    place.create(shipped, 1)
    rows = place.source(spark, orders, {"maxOffsetsPerTrigger": str(PER_TRIGGER), **arm.source})
    choices: dict[str, Any] = {} if arm.lanes is None else {"lanes": arm.lanes, "lane": _lane}
    done = rows.transform(
        thulawa.map_by_key(
            ship, key="key", returns="value binary", keep=["key"], in_flight=10, **choices
        )
    )
    writer = place.sink(done, shipped).trigger(processingTime="1 second")
    query = writer.option("checkpointLocation", str(folder / arm.name)).start()
    over = threading.Event()
    send = place.sender(orders, in_buckets=bool(arm.source))
    feeder = threading.Thread(target=placing, args=(send, over))
    try:
        # workers are started for the first orders, which do not count
        send([(f"{bucket}-first-{n}", "0") for bucket in RATES for n in range(PARTITIONS)])
        _await(query, lambda: len(list(place.shipped(shipped))) == len(RATES) * PARTITIONS)
        feeder.start()
        end = time.monotonic() + seconds
        _await(query, lambda: time.monotonic() > end and any(waits(place, shipped).values()))
    finally:
        over.set()
        if feeder.ident is not None:
            feeder.join()
        query.stop()
    return {name: _summary(sorted(some)) for name, some in waits(place, shipped).items()}


def _await(query: StreamingQuery, done: Callable[[], bool]) -> None:
    """Wait for something while the query runs; raise what ends it."""
    while not done() and not query.awaitTermination(1):
        pass


def _lane(order: Any) -> str:
    return BUCKETS.lane(bytes(order.key))


def waits(place: Place, topic: str) -> dict[str, list[float]]:
    """Give how long the orders of each bucket took, of those that count."""
    found: dict[str, list[float]] = {name: [] for name in BUCKETS.urgency}
    for key, ordered, shipped in place.shipped(topic):
        if ordered:
            found[BUCKETS.lane(key)].append(shipped - ordered)
    return found


def _summary(took: list[float]) -> dict[str, float]:
    if not took:
        return {"shipped": 0, "p50": 0.0, "p99": 0.0}
    most = len(took) - 1
    return {"shipped": len(took), "p50": took[round(most * 0.5)], "p99": took[round(most * 0.99)]}


def picture(found: dict[str, dict[str, Any]], where: str, seconds: float) -> str:
    """Draw the latencies by bucket."""
    titles = {
        "none": "no priorities",
        "weighted": "buckets by weight",
        "strict": "strictly Platinum first",
    }
    return Chart(
        title="How long orders take, by bucket",
        subtitle=f"{where}; three times as many orders as can be shipped, for {seconds:g} s",
        axis="99th percentile of seconds from order to shipping, of the orders that were shipped",
        groups={
            titles[arm] + "".join(f" ({name}: none)" for name in _left_out(buckets)): [
                Bar(name, one["p99"], COLOURS[name])
                for name, one in buckets.items()
                if one["shipped"]
            ]
            for arm, buckets in found.items()
        },
        goal=0,
        goal_name="",
    ).svg()


def _left_out(buckets: dict[str, Any]) -> list[str]:
    return [name for name, one in buckets.items() if not one["shipped"]]


@contextmanager
def opened(folder: Path, *, kafka: bool) -> Iterator[Place]:
    """Give the place of the topics."""
    if kafka and "THULAWA_KAFKA" in os.environ:
        yield Brokers(Connection.of())
    elif kafka:
        with DevBroker(f"priority-{folder.name}", port=0) as broker:
            yield Brokers(broker.connection)
    else:
        yield Folder(f"file:{folder / 'topics'}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the story and print what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kafka", action="store_true", help="on Kafka instead of a folder")
    parser.add_argument("--seconds", type=float, default=20.0, help="for how long orders come")
    parser.add_argument("--svg", type=Path, default=Path("priority.svg"), help="the picture")
    chosen = parser.parse_args(arguments)
    # queries are stopped in the midst of a batch, which Spark would tell of at length
    quiet = {"spark.log.level": "OFF", "spark.ui.showConsoleProgress": "false"}
    spark = thulawa.session("priority-orders", settings=quiet)
    found: dict[str, dict[str, Any]] = {}
    print(f"layout of {PARTITIONS} partitions: {BUCKETS.layout(PARTITIONS)}")
    with (
        tempfile.TemporaryDirectory() as name,
        opened(Path(name), kafka=chosen.kafka) as place,
    ):
        for arm in ARMS:
            found[arm.name] = run(spark, place, arm, chosen.seconds, Path(name))
            for bucket, one in found[arm.name].items():
                print(
                    f"{arm.name:>8} {bucket:>8}: {one['shipped']:5.0f} shipped, "
                    f"p50 {one['p50']:5.1f} s, p99 {one['p99']:5.1f} s"
                )
    where = "Kafka" if chosen.kafka else "the embedded log"
    chosen.svg.write_text(picture(found, where, chosen.seconds), encoding="utf-8")
    print(f"picture: {chosen.svg}")


if __name__ == "__main__":
    main()
