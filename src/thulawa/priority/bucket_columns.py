"""Buckets as Spark columns: the bucket and partition of a key, and rows prepared for any sink.

The methods of `Buckets` run in Spark's workers on the distinct keys of an Arrow batch, so a column
and `Buckets.partition` cannot differ. Spark's own functions do not include Kafka's hash.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from thulawa.engine import Percentiles
from thulawa.errors import ConfigurationError
from thulawa.priority.buckets import STAMP, Buckets
from thulawa.priority.placement import Placement
from thulawa.spark.session.shipping import ship

_WATCHED = "thulawa-buckets"
_HEADERS = "array<struct<key:string,value:binary>>"


def bucket_column(buckets: Buckets, key: str | Column) -> Column:
    """Return a column with the bucket of each row's key; null if it is unknown.

    .. versionadded:: 0.1.0
    """
    return _mapped(buckets.bucket, "string", pa.string())(key)


def partition_column(buckets: Buckets, key: str | Column, partitions: int) -> Column:
    """Return a column with the partition of each row's key; null if it is dropped.

    Keys are strings or binary. Rows without a key are distributed round-robin over their bucket.

    .. versionadded:: 0.1.0
    """
    return _mapped(Placement(buckets, partitions), "int", pa.int32())(key)


def in_buckets(
    buckets: Buckets, partitions: int, *, key: str = "key"
) -> Callable[[DataFrame], DataFrame]:
    """Return a transform that adds the columns ``partition`` and ``headers``, for any sink.

    Use it with ``DataFrame.transform`` for a sink without an option for buckets, as Spark's own, or
    if a bucket is a function of the key. Rows of unknown buckets are removed if the buckets drop
    them.

    .. versionadded:: 0.1.0
    """

    def ready(df: DataFrame) -> DataFrame:
        name, value = buckets.stamp
        stamp = f.array(f.struct(f.lit(name).alias("key"), f.lit(value).alias("value")))
        headers = stamp.cast(_HEADERS)
        if "headers" in df.columns:
            kept = f.coalesce(f.col("headers"), f.array().cast(_HEADERS))
            headers = f.concat(f.filter(kept, lambda one: one["key"] != STAMP), headers)
        placed = df.withColumn("partition", partition_column(buckets, key, partitions))
        placed = placed.withColumn("headers", headers)
        return placed.where("partition is not null") if buckets.unknown == "drop" else placed

    return ready


def check_buckets(buckets: Buckets) -> Callable[[DataFrame], DataFrame]:
    """Return a transform that raises for rows that another layout placed.

    Use it with ``DataFrame.transform`` for a source without an option for buckets: Spark's own.

    .. versionadded:: 0.1.0
    """
    known = [buckets.fingerprint, *buckets.accepts]

    def checked(df: DataFrame) -> DataFrame:
        stamps = f.filter("headers", lambda header: header["key"] == STAMP)
        stamp = f.coalesce(f.element_at(stamps, -1)["value"].cast("string"), f.lit(""))
        told = f.concat(
            f.lit("records were placed by another layout of buckets: in topic "), f.col("topic"),
            f.lit(" its fingerprint is "), stamp, f.lit(f", here it is {buckets.fingerprint}"),
        )  # fmt: skip
        wrong = (f.size(stamps) > 0) & ~stamp.isin(known)
        return df.where(f.when(wrong, f.raise_error(told).cast("boolean")).otherwise(f.lit(True)))  # noqa: FBT003

    return checked


def watch_buckets(
    buckets: Buckets, partitions: Mapping[str, int]
) -> Callable[[DataFrame], DataFrame]:
    """Return a transform that adds the latency of each bucket to a query's progress.

    Use it with ``DataFrame.transform`` directly after the source: it reads the columns ``topic``,
    ``partition`` and ``timestamp``. `bucket_progress` returns the results.

    .. versionadded:: 0.1.0
    """
    of = {
        bucket: f.lit(False)  # noqa: FBT003 Spark's literal
        for bucket in buckets.urgency
    }
    for topic, count in partitions.items():
        for bucket, members in buckets.layout(count).items():
            of[bucket] |= (f.col("topic") == topic) & f.col("partition").isin(members)

    def figures(bucket: str) -> Column:
        mine = f.when(of[bucket], f.unix_millis("timestamp"))
        came = f.percentile_approx(mine, [0.5, 0.01, 0.0], 1_000)  # the latest waited least
        return f.struct(f.count(mine).alias("count"), came.alias("came")).alias(bucket)

    return lambda df: df.observe(_WATCHED, *map(figures, buckets.urgency))


@dataclass(frozen=True, slots=True)
class BucketProgress:
    """One bucket in a query's progress: records of the last micro-batch, and unread records.

    ``taken`` is None where it is not known: the first trigger of a query does not say where it
    began, unless it was at the beginning. They were in flight while the trigger ran.

    With `watch_buckets`, of those taken: ``latency`` from a record's timestamp to the end of the
    trigger, and ``oldest``, for how long the first of them had waited when it began. In seconds;
    None where there were none.
    """

    taken: int | None
    waiting: int
    latency: Percentiles | None = None
    oldest: float | None = None


def bucket_progress(
    progress: Mapping[str, Any] | None, buckets: Buckets, partitions: Mapping[str, int]
) -> dict[str, BucketProgress]:
    """Return a query's ``lastProgress`` by bucket; ``partitions`` are the numbers by topic.

    Before the first trigger there is none (None), and nothing was taken. What is counted are
    offsets: in Kafka transactions have some of their own.

    .. versionadded:: 0.1.0
    """
    taken = dict.fromkeys(buckets.urgency, 0)
    waiting = dict.fromkeys(buckets.urgency, 0)
    known = True
    for source in progress["sources"] if progress is not None else ():
        start, end, latest = (
            _offsets(source.get(name)) for name in ("startOffset", "endOffset", "latestOffset")
        )
        topics = {topic: places for topic, places in end.items() if topic in partitions}
        ends = sum(upto for places in topics.values() for upto in places.values())
        known &= bool(start or ends == source["numInputRows"])
        for topic, places in topics.items():
            members = buckets.members(partitions[topic])
            for place, upto in places.items():
                if int(place) not in members:
                    raise ConfigurationError(
                        f"topic {topic} has a partition {place}, so more than the "
                        f"{partitions[topic]} it is said to have"
                    )
                bucket = members[int(place)]
                taken[bucket] += upto - start.get(topic, {}).get(place, 0)
                waiting[bucket] += latest.get(topic, {}).get(place, upto) - upto
    return {
        name: BucketProgress(
            taken[name] if known else None, waiting[name], *_watched(progress, name)
        )
        for name in buckets.urgency
    }


def _watched(
    progress: Mapping[str, Any] | None, bucket: str
) -> tuple[Percentiles | None, float | None]:
    """Return the latency of a bucket's records and the longest wait; None if not observed."""
    found = (progress or {}).get("observedMetrics", {}).get(_WATCHED)
    if progress is None or found is None or not found[bucket]["count"]:
        return None, None
    began = datetime.fromisoformat(progress["timestamp"]).timestamp()
    ended = began + progress["durationMs"]["triggerExecution"] / 1_000
    came = [one / 1_000 for one in found[bucket]["came"]]
    latency = Percentiles(found[bucket]["count"], *(ended - one for one in came))
    return latency, began - came[-1]


def _offsets(text: Any) -> dict[str, dict[str, int]]:
    """Return offsets of a progress report, which are JSON or already parsed by PySpark."""
    read = json.loads(text) if isinstance(text, str) else text
    return read if isinstance(read, dict) else {}


def _mapped(function: Callable[[Any], Any], of: str, kind: pa.DataType) -> Callable[..., Column]:
    """Return a function of columns that calls a function once per distinct key of a batch."""

    def over(keys: pa.Array) -> pa.Array:
        encoded = keys.dictionary_encode()
        answers = pa.array([function(key) for key in encoded.dictionary.to_pylist()], kind)
        found = answers.take(encoded.indices)
        if not keys.null_count:
            return found
        unkeyed = pa.array([function(None) for _ in range(keys.null_count)], kind)
        return pc.replace_with_mask(found, keys.is_null(), unkeyed)

    if session := SparkSession.getActiveSession():
        ship(session)
    over.__annotations__ = {"keys": pa.Array, "return": pa.Array}
    made: Any = f.arrow_udf(over, returnType=of)  # type: ignore[attr-defined] # PySpark has no stub
    return cast("Callable[..., Column]", made)
