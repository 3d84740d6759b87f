"""Exact counts per window, with one compacted topic that is both changelog and output.

::

    from thulawa import WindowCounts
    from thulawa.health import Influx, json_schema

    health = WindowCounts(
        ["tx"],
        status=json_schema({"type": "object", "required": ["id"]}),
        output="metrics",
        application_id="topic-health",
        log="file:./topics",
        sinks=[Influx("http://localhost:8086", database="health")],
    )
    with health:
        health.process_all_available()

Messages are counted per (topic, partition, window, status), each input partition by itself, in
columns. A count is written as the total so far together with the offset up to which it counts, so
whoever reads the topic to its end knows the totals and where to go on: there is no other state.

From bottom to top: `model` is a count and its form in the topic; `statuses` and `schemas` decide
what a message is; `columns` counts; `totals` is what a partition has come to; `changelog` writes
and reads the topic (`embedded`, `brokered`); `ownership` says who counts what; `merging` sums over
partitions; `sinks`, `influx` and `prometheus` show the result. None of it needs Spark.
"""

from thulawa.health.influx import Influx, InfluxUnreachable
from thulawa.health.merging import merged
from thulawa.health.model import Cell, Count
from thulawa.health.prometheus import Prometheus
from thulawa.health.schema_validation import json_schema
from thulawa.health.sinks import Sink
from thulawa.health.statuses import in_columns

__all__ = [
    "Cell",
    "Count",
    "Influx",
    "InfluxUnreachable",
    "Prometheus",
    "Sink",
    "in_columns",
    "json_schema",
    "merged",
]
