"""Kafka as a Spark source: topics read by the Python client, with the embedded log's columns.

A topic-partition is in one Spark partition, with its rows in offset order, committed records only.
There are at most as many Spark partitions as the session has cores: each costs a Python task, and
no more of them run concurrently. A rerun has each topic-partition in the same task, on which
exactly-once sinks rely, and topics and partitions may be added and removed between batches
(ADR 0047).
"""

import json
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from pyspark.sql import DataFrame, SparkSession

from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.topics import Topics, reachable
from thulawa.core.types import Offsets
from thulawa.errors import ConfigurationError, UnknownTopic
from thulawa.spark.connectors.kafka_sink import FORMAT, KafkaFormat, connection_options, register
from thulawa.spark.connectors.log_packed import PackedSource

Starting: TypeAlias = Literal["earliest", "latest"] | Offsets

_STARTING = ("earliest", "latest")
_OPTIONS = ("maxPartitions", "buckets", "bucketOrder")
_SPLITS = (
    "it splits a topic-partition over several tasks, which breaks the order of keys; leave it out"
)
_REJECTED = {
    "subscribe": "use the argument topics=…",
    "subscribepattern": "use the argument pattern=…",
    "assign": "use the argument topics=…",
    "startingoffsets": "use the argument starting=…",
    "maxoffsetspertrigger": "use the argument max_records=…",
    "minpartitions": _SPLITS,
    "maxrecordsperpartition": _SPLITS,
    "failondataloss": (
        "records that are deleted before they are read always end the query; leave it out, and "
        "raise the topic's retention"
    ),
}


class PackedKafkaFormat(PackedSource, KafkaFormat):
    """Streaming source of chunks of Kafka topics, for stream programs."""

    FORMAT = "thulawa-kafka-packed"


def kafka_source(
    spark: SparkSession,
    connection: Connection | str,
    topics: str | Sequence[str] | Mapping[str, Sequence[int]] = (),
    *,
    pattern: str | None = None,
    starting: Starting = "earliest",
    max_records: int | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return a streaming DataFrame of topics, or of all topics whose name matches a pattern.

    A mapping of topics to partition numbers reads only these partitions, such as those of one of
    `Buckets`. ``pattern`` is a Python regular expression that matches the whole name. ``starting``
    applies while there is no checkpoint. It may hold offsets (-1: latest, -2: earliest); partitions
    that it does not name begin with their first record, and so do those that are added later.
    ``max_records`` limits a micro-batch. ``options`` are those of the format ``thulawa-kafka``:
    ``maxPartitions`` (Spark partitions; by default the cores of the session), ``buckets`` and
    ``bucketOrder``. Raises at once if the brokers do not answer, reject the credentials or have no
    such topic.

    .. versionadded:: 0.1.0
    """
    connection = Connection.of(connection)
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    if bool(names) == (pattern is not None):
        raise ConfigurationError("give topics, or a pattern of their names, and not both")
    if isinstance(starting, str) and starting not in _STARTING:
        raise ConfigurationError(
            f"starting is earliest, latest or {{topic: {{partition: offset}}}}, not {starting!r}"
        )
    more = {_known_option(name): value for name, value in (options or {}).items()}
    reachable(connection)
    counts = Topics(connection).partitions(*names)
    for name in names:
        if name not in counts:
            raise UnknownTopic("there is no such topic to read", topic=name)
    few = topics if isinstance(topics, Mapping) else {}
    cores = spark.sparkContext.defaultParallelism
    chosen = {"maxPartitions": str(cores), **connection_options(connection), **more}
    if isinstance(topics, Mapping):
        chosen["assign"] = json.dumps({name: list(some) for name, some in topics.items()})
    elif pattern is None:
        chosen["subscribe"] = ",".join(names)
    else:
        chosen["subscribePattern"] = pattern
    if isinstance(starting, str):
        chosen["startingOffsets"] = starting
    else:
        reads = {name: few.get(name, range(count or 0)) for name, count in counts.items()}
        chosen["startingOffsets"] = _starting(starting, None if pattern else reads)
    if max_records is not None:
        chosen["maxOffsetsPerTrigger"] = str(max_records)
    register(spark)
    return spark.readStream.format(FORMAT).options(**chosen).load()


def _starting(starting: Offsets, reads: Mapping[str, Sequence[int]] | None) -> str:
    """Return the start offsets as JSON; raise for partitions that are not read."""
    unread = [
        f"{name}-{number}"
        for name, some in starting.items()
        for number in some
        if reads is not None and int(number) not in reads.get(name, ())
    ]
    if unread:
        raise ConfigurationError(f"starting names {', '.join(unread)}, which is not read")
    return json.dumps(starting)


def _known_option(name: str) -> str:
    """Return the canonical spelling of an option; raise for one that does not exist."""
    lowered = name.lower()
    if lowered in _REJECTED:
        raise ConfigurationError(f"{name}: {_REJECTED[lowered]}")
    if lowered.startswith("kafka."):
        raise ConfigurationError(f"{name}: use Connection(address, settings)")
    for known in _OPTIONS:
        if lowered == known.lower():
            return known
    raise ConfigurationError(
        f"kafka_source has no option {name}, which may be one of Spark's own Kafka source; it has "
        f"{', '.join(_OPTIONS)}"
    )
