"""Many keys of one partition at once, each key in order, nothing lost.

Names are loaded when first used, so that a Spark worker that needs the engine alone
does not pay for the rest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thulawa.app import Restart, State, Streams, WindowCounts
    from thulawa.core.buckets import Buckets, UnknownBucket
    from thulawa.core.errors import (
        ConfigurationError,
        Overload,
        RecordError,
        Retriable,
        Terminal,
        ThulawaError,
    )
    from thulawa.core.fetching import Fetching
    from thulawa.dsl import (
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
    from thulawa.kafka.connection import Connection
    from thulawa.kafka.routing import Policies
    from thulawa.kafka.topics import TopicSpec
    from thulawa.kafka.transactions import SinkSpec
    from thulawa.log import Log
    from thulawa.runtime.caches import Cache
    from thulawa.runtime.handlers import DeadLetterQueue, Handlers, log_and_continue
    from thulawa.runtime.options import TaskOptions
    from thulawa.spark.buckets import (
        bucket_column,
        bucket_progress,
        check_buckets,
        in_buckets,
        partition_column,
        watch_buckets,
    )
    from thulawa.spark.count_rows import DataFrameSink, read_counts
    from thulawa.spark.counting import count_windows
    from thulawa.spark.error_split import split_errors
    from thulawa.spark.kafka_progress import GroupCommits
    from thulawa.spark.kafka_sink import kafka_sink
    from thulawa.spark.kafka_source import kafka_source
    from thulawa.spark.lane_report import LaneReport
    from thulawa.spark.log_sink import log_sink
    from thulawa.spark.mapping import flat_map_by_key, map_by_key
    from thulawa.spark.session import configure, session

__version__ = "0.1.0"

_HOMES = {
    "thulawa.core.buckets": ("Buckets", "UnknownBucket"),
    "thulawa.app": ("Restart", "State", "Streams", "WindowCounts"),
    "thulawa.core.fetching": ("Fetching",),
    "thulawa.core.errors": (
        "ConfigurationError",
        "Overload",
        "RecordError",
        "Retriable",
        "Terminal",
        "ThulawaError",
    ),
    "thulawa.dsl": (
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
    "thulawa.kafka.connection": ("Connection",),
    "thulawa.kafka.routing": ("Policies",),
    "thulawa.kafka.topics": ("TopicSpec",),
    "thulawa.kafka.transactions": ("SinkSpec",),
    "thulawa.log": ("Log",),
    "thulawa.runtime.caches": ("Cache",),
    "thulawa.runtime.handlers": ("DeadLetterQueue", "Handlers", "log_and_continue"),
    "thulawa.runtime.options": ("TaskOptions",),
    "thulawa.spark.buckets": (
        "bucket_column",
        "bucket_progress",
        "check_buckets",
        "in_buckets",
        "partition_column",
        "watch_buckets",
    ),
    "thulawa.spark.kafka_progress": ("GroupCommits",),
    "thulawa.spark.kafka_sink": ("kafka_sink",),
    "thulawa.spark.kafka_source": ("kafka_source",),
    "thulawa.spark.lane_report": ("LaneReport",),
    "thulawa.spark.log_sink": ("log_sink",),
    "thulawa.spark.count_rows": ("DataFrameSink", "read_counts"),
    "thulawa.spark.counting": ("count_windows",),
    "thulawa.spark.error_split": ("split_errors",),
    "thulawa.spark.mapping": ("flat_map_by_key", "map_by_key"),
    "thulawa.spark.session": ("configure", "session"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Adaptive",
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
    "Fetching",
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
