"""The DSL: Kafka Streams' programming model of streams and tables.

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

The names are Kafka's, in snake_case. `StreamsBuilder` reads topics as `KStream`, `KTable` or
`GlobalKTable`. Grouping returns a `KGroupedStream`, `KGroupedTable` or `CogroupedKStream`, windows
a `TimeWindowedKStream` or `SessionWindowedKStream`. Each step is configured by an option object:
`Consumed`, `Produced`, `Grouped`, `Joined`, `StreamJoined`, `TableJoined`, `Materialized`,
`Repartitioned`, `Branched`, `Named`, `Suppressed`. `TaskOptions` and `Handlers` configure how tasks
run, and what happens to records that fail. `thulawa.streams.kip28` has the spellings of KIP-28.
The examples of operators use `thulawa.testing.preview`.
"""

from thulawa.core.records import Record, RecordMetadata, Window, Windowed
from thulawa.core.registry import HttpSchemaRegistry, MemorySchemaRegistry
from thulawa.core.serdes import Serde, Serdes
from thulawa.runtime.application_states import Restart, State
from thulawa.runtime.batch_size import AdaptiveBatchSize
from thulawa.runtime.handlers import (
    DeadLetterQueue,
    ErrorRecord,
    Fail,
    Handlers,
    Resume,
    RetryOutput,
    log_and_continue,
    log_and_fail,
)
from thulawa.runtime.task_options import TaskOptions
from thulawa.state.specs import StoreSpec
from thulawa.streams.branches import BranchedKStream
from thulawa.streams.cogrouped import CogroupedKStream, WindowedCogroupedKStream
from thulawa.streams.grouped import KGroupedStream, KGroupedTable
from thulawa.streams.kstream import KStream
from thulawa.streams.ktable import GlobalKTable, KTable
from thulawa.streams.operator_options import (
    Branched,
    Consumed,
    Grouped,
    Joined,
    Materialized,
    Named,
    Produced,
    Repartitioned,
    StreamJoined,
    Suppressed,
    TableJoined,
)
from thulawa.streams.streams_builder import StreamsBuilder
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

# KIP-28's names; the rest of its spellings is in thulawa.streams.kip28
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
    "ErrorRecord",
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
    "RetryOutput",
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
