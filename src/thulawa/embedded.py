"""The embedded log: topics in a folder, for one machine without a broker."""

from typing import TYPE_CHECKING

from thulawa.core.lazy import lazy_names

if TYPE_CHECKING:
    from thulawa.brokers.embedded import ConsumerRecord as ConsumerRecord
    from thulawa.brokers.embedded import Log as Log
    from thulawa.brokers.embedded import ProducerRecord as ProducerRecord
    from thulawa.brokers.embedded import Retention as Retention
    from thulawa.brokers.embedded import TopicDescription as TopicDescription
    from thulawa.spark.connectors.log_sink import log_sink as log_sink

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "thulawa.brokers.embedded": (
            "ConsumerRecord",
            "Log",
            "ProducerRecord",
            "Retention",
            "TopicDescription",
        ),
        "thulawa.spark.connectors.log_sink": ("log_sink",),
    },
)
