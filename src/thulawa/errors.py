"""Every error that the library raises, in one place. `thulawa.core.errors` draws the tree."""

from typing import TYPE_CHECKING

from thulawa.core.lazy import lazy_names

if TYPE_CHECKING:
    from thulawa.brokers.embedded.errors import DamagedLog as DamagedLog
    from thulawa.brokers.embedded.errors import ForeignLog as ForeignLog
    from thulawa.brokers.embedded.errors import InvalidRecord as InvalidRecord
    from thulawa.brokers.embedded.errors import LogBusy as LogBusy
    from thulawa.brokers.embedded.errors import LogError as LogError
    from thulawa.brokers.embedded.errors import LogFailed as LogFailed
    from thulawa.brokers.errors import BrokerError as BrokerError
    from thulawa.brokers.errors import Fenced as Fenced
    from thulawa.brokers.errors import OffsetOutOfRange as OffsetOutOfRange
    from thulawa.brokers.errors import RecordTooLarge as RecordTooLarge
    from thulawa.brokers.errors import TopicDiffers as TopicDiffers
    from thulawa.brokers.errors import TransactionOpen as TransactionOpen
    from thulawa.brokers.errors import UnknownTopic as UnknownTopic
    from thulawa.brokers.kafka.errors import AuthenticationFailed as AuthenticationFailed
    from thulawa.brokers.kafka.errors import BrokerFailed as BrokerFailed
    from thulawa.brokers.kafka.errors import BrokerUnreachable as BrokerUnreachable
    from thulawa.brokers.kafka.errors import KafkaError as KafkaError
    from thulawa.core.errors import AttemptTimedOut as AttemptTimedOut
    from thulawa.core.errors import BadKey as BadKey
    from thulawa.core.errors import BadLane as BadLane
    from thulawa.core.errors import ConfigurationError as ConfigurationError
    from thulawa.core.errors import DeadlineExceeded as DeadlineExceeded
    from thulawa.core.errors import Overload as Overload
    from thulawa.core.errors import ProcessingError as ProcessingError
    from thulawa.core.errors import ProductionError as ProductionError
    from thulawa.core.errors import Quarantined as Quarantined
    from thulawa.core.errors import QueryFailed as QueryFailed
    from thulawa.core.errors import RecordError as RecordError
    from thulawa.core.errors import Retriable as Retriable
    from thulawa.core.errors import SelfCancelled as SelfCancelled
    from thulawa.core.errors import SerializationError as SerializationError
    from thulawa.core.errors import StateError as StateError
    from thulawa.core.errors import StateLoss as StateLoss
    from thulawa.core.errors import StreamError as StreamError
    from thulawa.core.errors import Terminal as Terminal
    from thulawa.core.errors import ThulawaError as ThulawaError
    from thulawa.core.errors import TimestampError as TimestampError
    from thulawa.core.errors import TopologyError as TopologyError
    from thulawa.core.errors import WrongResult as WrongResult
    from thulawa.core.markers import OlderBatch as OlderBatch
    from thulawa.health.influx import InfluxUnreachable as InfluxUnreachable
    from thulawa.priority.buckets import UnknownBucket as UnknownBucket

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "thulawa.brokers.embedded.errors": (
            "DamagedLog",
            "ForeignLog",
            "InvalidRecord",
            "LogBusy",
            "LogError",
            "LogFailed",
        ),
        "thulawa.brokers.errors": (
            "BrokerError",
            "Fenced",
            "OffsetOutOfRange",
            "RecordTooLarge",
            "TopicDiffers",
            "TransactionOpen",
            "UnknownTopic",
        ),
        "thulawa.brokers.kafka.errors": (
            "AuthenticationFailed",
            "BrokerFailed",
            "BrokerUnreachable",
            "KafkaError",
        ),
        "thulawa.core.errors": (
            "AttemptTimedOut",
            "BadKey",
            "BadLane",
            "ConfigurationError",
            "DeadlineExceeded",
            "Overload",
            "ProcessingError",
            "ProductionError",
            "Quarantined",
            "QueryFailed",
            "RecordError",
            "Retriable",
            "SelfCancelled",
            "SerializationError",
            "StateError",
            "StateLoss",
            "StreamError",
            "Terminal",
            "ThulawaError",
            "TimestampError",
            "TopologyError",
            "WrongResult",
        ),
        "thulawa.core.markers": ("OlderBatch",),
        "thulawa.health.influx": ("InfluxUnreachable",),
        "thulawa.priority.buckets": ("UnknownBucket",),
    },
)
