"""Change how many records the next batches of a running query take.

Spark asks a source for its read limit once, when a query starts, and keeps it beside the source.
There is no public way to change it; this replaces what Spark keeps. It works for every source
that heeds limits, Kafka's and ours, and touches neither. Where Spark keeps it otherwise than it
does in 4.2, nothing is changed, and the caller is told.
"""

import json
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["set_read_limit"]

_OF_PYTHON = "PythonStreamingSourceReadLimit"


def set_read_limit(spark: SparkSession, query: StreamingQuery, records: int) -> bool:
    """Let a batch take at most so many records from now on; tell whether that could be done."""
    wrapper: Any = query._jsq  # noqa: SLF001 the query, as Spark has it
    try:
        execution = wrapper.streamingQuery()
        limits = execution.uniqueSources()
        sources = limits.keysIterator()
        while sources.hasNext():
            source = sources.next()
            limits = limits.updated(source, _limit(spark, limits.apply(source), records))
        getattr(execution, "uniqueSources_$eq")(limits)
    except (Py4JError, TypeError):  # a name that is not there: py4j raises one or the other
        return False
    return True


def _limit(spark: SparkSession, before: Any, records: int) -> Any:
    """Give a limit in the form that the source knows: those in Python have one of their own."""
    if before.getClass().getSimpleName() == _OF_PYTHON:
        return before.copy(json.dumps({"max_rows": records, "_type": "ReadMaxRows"}))
    jvm: Any = spark._jvm  # noqa: SLF001
    return jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit.maxRows(records)
