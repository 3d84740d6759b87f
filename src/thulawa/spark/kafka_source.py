"""Kafka as a Spark source: Spark's own connector, in the shape of the embedded log's source.

One Spark partition per topic partition, rows in offset order, committed records only. Options that
would break this are refused. A batch that is run again has each topic partition at the same place
among its tasks, on which exactly-once sinks rely (ADR 0034).
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from thulawa.core.errors import ConfigurationError
from thulawa.kafka.connection import Connection
from thulawa.kafka.errors import UnknownTopic
from thulawa.kafka.maven import connector_jars
from thulawa.kafka.topics import Offsets, Topics, TopicSpec, reachable
from thulawa.spark.guard import STEADY
from thulawa.spark.offsets import PADDING

__all__ = ["COLUMNS", "Starting", "kafka_source", "load_connector"]

Starting: TypeAlias = Literal["earliest", "latest"] | Offsets

# Up to four partitions the connector lists in the order they come to it, which is another one
# after a restart; more it lists by their hash.
_STEADY = 5
_STARTING = ("earliest", "latest")
_EARLIEST = -2  # the connector's word for it, where offsets are given by number

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
_CONNECTOR = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
_SPLITTING = ("minpartitions", "maxrecordsperpartition")
_OURS = {
    "subscribe": "topics",
    "subscribepattern": "pattern",
    "assign": "topics",
    "startingoffsets": "starting",
    "maxoffsetspertrigger": "max_records",
}


def kafka_source(
    spark: SparkSession,
    connection: Connection | str,
    topics: str | Sequence[str] | Mapping[str, Sequence[int]] = (),
    *,
    pattern: str | None = None,
    starting: Starting = "earliest",
    max_records: int | None = None,
    ordered: bool = True,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Give a streaming DataFrame of topics, or of all topics whose name matches a pattern.

    Topics with lists of numbers are read in these partitions alone, say those of one of `Buckets`.
    ``starting`` counts where there is no checkpoint yet. It may give offsets (-1: latest, -2:
    earliest); partitions of ``topics`` that it leaves out begin with their first record.
    ``max_records`` bounds a trigger. ``options`` are the connector's own; with ``ordered`` those
    that split a partition, or hide that records were lost, are refused. Raises at once when the
    brokers do not answer, do not let us in, or have no such topic.

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
    more = dict(options or {})
    _refuse(more, ordered=ordered)
    reachable(connection)
    broker = Topics(connection)
    counts = broker.partitions(*names)
    for name, count in counts.items():
        if count is None:
            raise UnknownTopic("there is no such topic to read", topic=name)
    few = topics if isinstance(topics, Mapping) else {}
    reads = {name: few.get(name, range(count or 0)) for name, count in counts.items()}
    # how many match a pattern nobody knows: it counts as none
    padding = {PADDING: range(_STEADY)} if sum(map(len, reads.values())) < _STEADY else {}
    for name, places in padding.items():
        broker.ensure(name, TopicSpec(partitions=len(places)))
    load_connector(spark)
    chosen = {
        "includeHeaders": "true",
        "failOnDataLoss": "true",
        "kafka.isolation.level": "read_committed",
        "startingOffsets": _starting(starting, {**reads, **padding}, known=pattern is None),
        STEADY: "true",
        **connection.spark(),
        **more,
    }
    if isinstance(topics, Mapping):
        chosen["assign"] = json.dumps({n: list(some) for n, some in {**topics, **padding}.items()})
    elif pattern is None:
        chosen["subscribe"] = ",".join((*names, *padding))
    else:
        chosen["subscribePattern"] = "|".join((f"(?:{pattern})", *padding))
    if max_records is not None:
        chosen["maxOffsetsPerTrigger"] = str(max_records)
    return spark.readStream.format("kafka").options(**chosen).load().select(*COLUMNS)


def _starting(starting: Starting, reads: Mapping[str, Sequence[int]], *, known: bool) -> str:
    """Write where to begin as the connector wants it, which is with each partition that is read."""
    if isinstance(starting, str):
        return starting
    given = {name: {int(n): at for n, at in some.items()} for name, some in starting.items()}
    strangers = [
        f"{name}-{n}" for name, some in given.items() for n in some if n not in reads.get(name, ())
    ]
    if known and strangers:
        raise ConfigurationError(f"starting names {', '.join(strangers)}, which is not read")
    begin = {name: dict.fromkeys(places, _EARLIEST) for name, places in reads.items()}
    return json.dumps(
        {name: begin.get(name, {}) | given.get(name, {}) for name in {**begin, **given}}
    )


def load_connector(spark: SparkSession) -> None:
    """Give a running session Spark's Kafka connector, fetched on first use, unless it has one."""
    jvm: Any = spark._jvm  # noqa: SLF001 the only door to the class loader
    loader = jvm.Thread.currentThread().getContextClassLoader()
    try:
        jvm.Class.forName(_CONNECTOR, False, loader)  # noqa: FBT003 Java's signature
    except Py4JJavaError:
        for jar in connector_jars():
            spark.sql(f"ADD JAR '{jar}'")


def _refuse(options: Mapping[str, str], *, ordered: bool) -> None:
    for name, value in options.items():
        lowered = name.lower()
        if lowered in _OURS:
            raise ConfigurationError(f"{name}: say it with {_OURS[lowered]}=…")
        if ordered and lowered in _SPLITTING:
            raise ConfigurationError(
                f"{name} splits a topic's partition over several tasks, which ends the order of "
                "its keys; leave it out, or say ordered=False"
            )
        if ordered and lowered == "failondataloss" and value.lower() == "false":
            raise ConfigurationError(
                "failOnDataLoss=false goes on silently where records were lost; leave it out, or "
                "say ordered=False"
            )
