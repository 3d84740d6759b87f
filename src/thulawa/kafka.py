"""Kafka: connections, topics, the exactly-once sink and the source."""

from typing import TYPE_CHECKING

from thulawa.core.lazy import lazy_names

if TYPE_CHECKING:
    from thulawa.brokers.kafka.connection import Connection as Connection
    from thulawa.brokers.kafka.routing import Policies as Policies
    from thulawa.brokers.kafka.topics import TopicSpec as TopicSpec
    from thulawa.brokers.kafka.transactions import SinkSpec as SinkSpec
    from thulawa.spark.connectors.kafka_progress import GroupCommits as GroupCommits
    from thulawa.spark.connectors.kafka_sink import kafka_sink as kafka_sink
    from thulawa.spark.connectors.kafka_source import kafka_source as kafka_source

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "thulawa.brokers.kafka.connection": ("Connection",),
        "thulawa.brokers.kafka.routing": ("Policies",),
        "thulawa.brokers.kafka.topics": ("TopicSpec",),
        "thulawa.brokers.kafka.transactions": ("SinkSpec",),
        "thulawa.spark.connectors.kafka_progress": ("GroupCommits",),
        "thulawa.spark.connectors.kafka_sink": ("kafka_sink",),
        "thulawa.spark.connectors.kafka_source": ("kafka_source",),
    },
)
