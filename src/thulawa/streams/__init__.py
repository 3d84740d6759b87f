"""Kafka Streams' programming model: streams and tables, and what can be done with them.

::

    builder = StreamsBuilder()
    (
        builder.stream("visits")
        .group_by_key()
        .windowed_by(TimeWindows.of("1 minute"))
        .count(Materialized.as_("per-ip"))
        .to_stream()
        .to("visits-per-ip")
    )
    topology = builder.build()

The names are Kafka's, in snake_case. `StreamsBuilder` makes a `KStream`, a `KTable` or a
`GlobalKTable` of a topic; grouping gives a `KGroupedStream`, a `KGroupedTable` or a
`CogroupedKStream`; windows a `TimeWindowedKStream` or a `SessionWindowedKStream`. What can be
said about each step is in option objects: `Consumed`, `Produced`, `Grouped`, `Joined`,
`StreamJoined`, `TableJoined`, `Materialized`, `Repartitioned`, `Branched`, `Named`, `Suppressed`.
How tasks run, and what happens to records that fail, is in `TaskOptions` and its `Handlers`.
"""

from thulawa.core.records import Record, RecordMetadata, Window, Windowed
from thulawa.core.registry import HttpSchemaRegistry, MemorySchemaRegistry
from thulawa.core.serdes import Serde, Serdes
from thulawa.runtime.application_states import State
from thulawa.runtime.batch_size import AdaptiveBatchSize
from thulawa.runtime.handlers import (
    DeadLetterQueue,
    Fail,
    Handlers,
    Resume,
    log_and_continue,
    log_and_fail,
)
from thulawa.runtime.options import TaskOptions
from thulawa.runtime.restarts import Restart
from thulawa.state.specs import StoreSpec
from thulawa.streams.branches import BranchedKStream
from thulawa.streams.builder import StreamsBuilder
from thulawa.streams.cogrouped import CogroupedKStream, WindowedCogroupedKStream
from thulawa.streams.grouped import KGroupedStream, KGroupedTable
from thulawa.streams.kstream import KStream
from thulawa.streams.ktable import GlobalKTable, KTable
from thulawa.streams.options import (
    Branched,
    Consumed,
    Grouped,
    Joined,
    Materialized,
    Named,
    Produced,
    Repartitioned,
    StreamJoined,
    TableJoined,
)
from thulawa.streams.suppressed import Suppressed
from thulawa.streams.windowed import EmitStrategy, SessionWindowedKStream, TimeWindowedKStream
from thulawa.topology.determinism import deterministic
from thulawa.topology.processor import (
    AsyncProcessor,
    Processor,
    ProcessorContext,
    ValueTransformer,
    ValueTransformerContext,
)
from thulawa.topology.topology import Topology
from thulawa.topology.windows import JoinWindows, SessionWindows, SlidingWindows, TimeWindows

# The names of KIP-28; the rest of its spelling is in thulawa.streams.kip28.
KStreamBuilder = StreamsBuilder
TopologyBuilder = Topology

__all__ = [
    "AdaptiveBatchSize",
    "AsyncProcessor",
    "Branched",
    "BranchedKStream",
    "CogroupedKStream",
    "Consumed",
    "DeadLetterQueue",
    "EmitStrategy",
    "Fail",
    "GlobalKTable",
    "Grouped",
    "Handlers",
    "HttpSchemaRegistry",
    "JoinWindows",
    "Joined",
    "KGroupedStream",
    "KGroupedTable",
    "KStream",
    "KStreamBuilder",
    "KTable",
    "Materialized",
    "MemorySchemaRegistry",
    "Named",
    "Processor",
    "ProcessorContext",
    "Produced",
    "Record",
    "RecordMetadata",
    "Repartitioned",
    "Restart",
    "Resume",
    "Serde",
    "Serdes",
    "SessionWindowedKStream",
    "SessionWindows",
    "SlidingWindows",
    "State",
    "StoreSpec",
    "StreamJoined",
    "StreamsBuilder",
    "Suppressed",
    "TableJoined",
    "TaskOptions",
    "TimeWindowedKStream",
    "TimeWindows",
    "Topology",
    "TopologyBuilder",
    "ValueTransformer",
    "ValueTransformerContext",
    "Window",
    "Windowed",
    "WindowedCogroupedKStream",
    "deterministic",
    "log_and_continue",
    "log_and_fail",
]
