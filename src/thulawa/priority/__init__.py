"""Event priority: buckets of partitions, their layout, clients and column expressions."""

from typing import TYPE_CHECKING

from thulawa.core.lazy import lazy_names

if TYPE_CHECKING:
    from thulawa.errors import UnknownBucket as UnknownBucket
    from thulawa.priority.bucket_columns import bucket_column as bucket_column
    from thulawa.priority.bucket_columns import bucket_progress as bucket_progress
    from thulawa.priority.bucket_columns import check_buckets as check_buckets
    from thulawa.priority.bucket_columns import in_buckets as in_buckets
    from thulawa.priority.bucket_columns import partition_column as partition_column
    from thulawa.priority.bucket_columns import watch_buckets as watch_buckets
    from thulawa.priority.buckets import Buckets as Buckets
    from thulawa.priority.kafka_clients import BucketConsumer as BucketConsumer
    from thulawa.priority.kafka_clients import BucketProducer as BucketProducer
    from thulawa.spark.map_by_key.lane_report import LaneReport as LaneReport

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "thulawa.errors": ("UnknownBucket",),
        "thulawa.priority.buckets": ("Buckets",),
        "thulawa.priority.bucket_columns": (
            "bucket_column",
            "bucket_progress",
            "check_buckets",
            "in_buckets",
            "partition_column",
            "watch_buckets",
        ),
        "thulawa.priority.kafka_clients": ("BucketConsumer", "BucketProducer"),
        "thulawa.spark.map_by_key.lane_report": ("LaneReport",),
    },
)
