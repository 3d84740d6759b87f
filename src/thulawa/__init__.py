"""Many keys of one partition at once, each key in order, nothing lost.

Names are loaded when first used, so that a Spark worker that needs the engine alone
does not pay for the rest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thulawa.brokers.embedded import Log
    from thulawa.brokers.kafka.connection import Connection
    from thulawa.brokers.kafka.routing import Policies
    from thulawa.brokers.kafka.topics import TopicSpec
    from thulawa.brokers.kafka.transactions import SinkSpec
    from thulawa.core.errors import (
        ConfigurationError,
        Overload,
        RecordError,
        Retriable,
        Terminal,
        ThulawaError,
    )
    from thulawa.engine import (
        Adaptive,
        Batch,
        Bounds,
        Engine,
        Lane,
        Lanes,
        Options,
        Outcome,
        Quarantine,
        Rate,
        Record,
        Retry,
        Sharing,
    )
    from thulawa.health.application import WindowCounts
    from thulawa.health.dataframes import DataFrameSink, read_counts
    from thulawa.health.spark_jobs import count_windows
    from thulawa.priority.buckets import Buckets, UnknownBucket
    from thulawa.priority.columns import (
        bucket_column,
        bucket_progress,
        check_buckets,
        in_buckets,
        partition_column,
        watch_buckets,
    )
    from thulawa.runtime.caches import Cache
    from thulawa.runtime.handlers import DeadLetterQueue, Handlers, log_and_continue
    from thulawa.runtime.options import TaskOptions
    from thulawa.spark.application import Restart, State, Streams
    from thulawa.spark.connectors.kafka_progress import GroupCommits
    from thulawa.spark.connectors.kafka_sink import kafka_sink
    from thulawa.spark.connectors.kafka_source import kafka_source
    from thulawa.spark.connectors.log_sink import log_sink
    from thulawa.spark.map_by_key.api import flat_map_by_key, map_by_key
    from thulawa.spark.map_by_key.error_split import split_errors
    from thulawa.spark.map_by_key.lane_report import LaneReport
    from thulawa.spark.micro_batch.batch_size import AdaptiveBatchSize
    from thulawa.spark.session.spark_session import configure, session
    from thulawa.streams import (
        Branched,
        Consumed,
        EmitStrategy,
        Grouped,
        Joined,
        JoinWindows,
        KStream,
        KTable,
        Materialized,
        Named,
        Processor,
        ProcessorContext,
        Produced,
        Repartitioned,
        Serdes,
        SessionWindows,
        SlidingWindows,
        StoreSpec,
        StreamJoined,
        StreamsBuilder,
        Suppressed,
        TimeWindows,
        Topology,
        TopologyBuilder,
        deterministic,
    )

__version__ = "0.1.0"

_HOMES = {
    "thulawa.priority.buckets": ("Buckets", "UnknownBucket"),
    "thulawa.spark.application": ("Restart", "State", "Streams"),
    "thulawa.health.application": ("WindowCounts",),
    "thulawa.spark.micro_batch.batch_size": ("AdaptiveBatchSize",),
    "thulawa.core.errors": (
        "ConfigurationError",
        "Overload",
        "RecordError",
        "Retriable",
        "Terminal",
        "ThulawaError",
    ),
    "thulawa.streams": (
        "Branched",
        "Consumed",
        "EmitStrategy",
        "Grouped",
        "JoinWindows",
        "Joined",
        "KStream",
        "KTable",
        "Materialized",
        "Named",
        "Processor",
        "ProcessorContext",
        "Produced",
        "Repartitioned",
        "Serdes",
        "SessionWindows",
        "SlidingWindows",
        "StoreSpec",
        "StreamJoined",
        "StreamsBuilder",
        "Suppressed",
        "TimeWindows",
        "Topology",
        "TopologyBuilder",
        "deterministic",
    ),
    "thulawa.engine": (
        "Adaptive",
        "Batch",
        "Bounds",
        "Engine",
        "Lane",
        "Lanes",
        "Options",
        "Outcome",
        "Quarantine",
        "Rate",
        "Record",
        "Retry",
        "Sharing",
    ),
    "thulawa.brokers.kafka.connection": ("Connection",),
    "thulawa.brokers.kafka.routing": ("Policies",),
    "thulawa.brokers.kafka.topics": ("TopicSpec",),
    "thulawa.brokers.kafka.transactions": ("SinkSpec",),
    "thulawa.brokers.embedded": ("Log",),
    "thulawa.runtime.caches": ("Cache",),
    "thulawa.runtime.handlers": ("DeadLetterQueue", "Handlers", "log_and_continue"),
    "thulawa.runtime.options": ("TaskOptions",),
    "thulawa.priority.columns": (
        "bucket_column",
        "bucket_progress",
        "check_buckets",
        "in_buckets",
        "partition_column",
        "watch_buckets",
    ),
    "thulawa.spark.connectors.kafka_progress": ("GroupCommits",),
    "thulawa.spark.connectors.kafka_sink": ("kafka_sink",),
    "thulawa.spark.connectors.kafka_source": ("kafka_source",),
    "thulawa.spark.map_by_key.lane_report": ("LaneReport",),
    "thulawa.spark.connectors.log_sink": ("log_sink",),
    "thulawa.health.dataframes": ("DataFrameSink", "read_counts"),
    "thulawa.health.spark_jobs": ("count_windows",),
    "thulawa.spark.map_by_key.error_split": ("split_errors",),
    "thulawa.spark.map_by_key.api": ("flat_map_by_key", "map_by_key"),
    "thulawa.spark.session.spark_session": ("configure", "session"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Adaptive",
    "AdaptiveBatchSize",
    "Batch",
    "Bounds",
    "Branched",
    "Buckets",
    "Cache",
    "ConfigurationError",
    "Connection",
    "Consumed",
    "DataFrameSink",
    "DeadLetterQueue",
    "EmitStrategy",
    "Engine",
    "GroupCommits",
    "Grouped",
    "Handlers",
    "JoinWindows",
    "Joined",
    "KStream",
    "KTable",
    "Lane",
    "LaneReport",
    "Lanes",
    "Log",
    "Materialized",
    "Named",
    "Options",
    "Outcome",
    "Overload",
    "Policies",
    "Processor",
    "ProcessorContext",
    "Produced",
    "Quarantine",
    "Rate",
    "Record",
    "RecordError",
    "Repartitioned",
    "Restart",
    "Retriable",
    "Retry",
    "Serdes",
    "SessionWindows",
    "Sharing",
    "SinkSpec",
    "SlidingWindows",
    "State",
    "StoreSpec",
    "StreamJoined",
    "Streams",
    "StreamsBuilder",
    "Suppressed",
    "TaskOptions",
    "Terminal",
    "ThulawaError",
    "TimeWindows",
    "TopicSpec",
    "Topology",
    "TopologyBuilder",
    "UnknownBucket",
    "WindowCounts",
    "bucket_column",
    "bucket_progress",
    "check_buckets",
    "configure",
    "count_windows",
    "deterministic",
    "flat_map_by_key",
    "in_buckets",
    "kafka_sink",
    "kafka_source",
    "log_and_continue",
    "log_sink",
    "map_by_key",
    "partition_column",
    "read_counts",
    "session",
    "split_errors",
    "watch_buckets",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
