"""A topology on Spark with its topics in Kafka: exactly once, over a restart."""

from collections import Counter
from pathlib import Path

from pyspark.sql import SparkSession

from tests.kafka.helpers import fill, read
from thulawa.app import Streams
from thulawa.dsl.builder import StreamsBuilder
from thulawa.dsl.options import Materialized
from thulawa.kafka.connection import Connection
from thulawa.kafka.topics import Topics, TopicSpec
from thulawa.topology.topology import Topology


def counting(name: str) -> Topology:
    builder = StreamsBuilder()
    by_remainder = builder.stream(f"{name}-in").group_by(lambda key, value: str(value % 3))
    by_remainder.count(Materialized.as_("counts")).to_stream().to(f"{name}-out")
    return builder.build()


def test_counts_go_on_after_a_restart_and_every_update_leaves_once(
    spark: SparkSession, connection: Connection, topics: Topics, name: str, tmp_path: Path
) -> None:
    topics.ensure(f"{name}-in", TopicSpec(partitions=2))

    def process(numbers: range) -> None:
        fill(connection, f"{name}-in", numbers)
        with Streams(
            counting(name),
            application_id=name,
            log=f"kafka://{connection.bootstrap}",
            checkpoint=str(tmp_path),
            spark=spark,
        ) as streams:
            streams.process_all_available("90 s")
            assert streams.store("counts").get("0") == (numbers.stop + 2) // 3

    process(range(60))
    process(range(60, 90))
    updates = Counter((m.key(), m.value()) for m in read(connection, f"{name}-out"))
    assert updates == Counter((b"%d" % key, b"%d" % n) for key in range(3) for n in range(1, 31))
