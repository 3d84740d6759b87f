"""Exact counts per window, with one compacted topic that is both changelog and output.

::

    from thulawa.health import Influx, WindowCounts, json_schema

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
Arrow columns. A count is written as the total so far, with the offset up to which it counts. An
instance that reads the topic to its end knows the totals and where to continue: there is no other
state.

`counts` defines a count and its form in the topic; `statuses` and `schema_validation` decide the
status of a message; `counter` counts; `changelog` writes and reads the topic; `merging` sums over
partitions; `sinks`, `influx` and `prometheus` publish the result; `tasks`, `dataframes` and
`application` run it all on Spark.
"""

from typing import TYPE_CHECKING

from thulawa.core.lazy import lazy_names

if TYPE_CHECKING:
    from thulawa.errors import InfluxUnreachable as InfluxUnreachable
    from thulawa.health.application import WindowCounts as WindowCounts
    from thulawa.health.counts import Cell as Cell
    from thulawa.health.counts import Count as Count
    from thulawa.health.dataframes import DataFrameSink as DataFrameSink
    from thulawa.health.dataframes import count_windows as count_windows
    from thulawa.health.dataframes import read_counts as read_counts
    from thulawa.health.influx import Influx as Influx
    from thulawa.health.merging import merged as merged
    from thulawa.health.prometheus import Prometheus as Prometheus
    from thulawa.health.schema_validation import json_schema as json_schema
    from thulawa.health.sinks import CountSink as CountSink
    from thulawa.health.statuses import in_columns as in_columns

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "thulawa.errors": ("InfluxUnreachable",),
        "thulawa.health.application": ("WindowCounts",),
        "thulawa.health.counts": ("Cell", "Count"),
        "thulawa.health.dataframes": ("DataFrameSink", "count_windows", "read_counts"),
        "thulawa.health.influx": ("Influx",),
        "thulawa.health.merging": ("merged",),
        "thulawa.health.prometheus": ("Prometheus",),
        "thulawa.health.schema_validation": ("json_schema",),
        "thulawa.health.sinks": ("CountSink",),
        "thulawa.health.statuses": ("in_columns",),
    },
)
