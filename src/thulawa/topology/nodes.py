"""The kinds of nodes. Frozen: what is built later is read off them, never written back.

A node names its parents and its stores. Functions of the user are fields; how they are run is
the runtime's business, how they look in a description that of the renderers.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from thulawa.core.serdes import Serde
from thulawa.engine import Options
from thulawa.topology.windows import JoinWindows, SessionWindows, SlidingWindows, TimeWindows

__all__ = [
    "Aggregate",
    "AsyncCall",
    "Branch",
    "ForeignKeyStep",
    "GlobalTable",
    "JoinBuffer",
    "LookupJoin",
    "Node",
    "PartialAggregate",
    "Process",
    "Sink",
    "Source",
    "Stateless",
    "StreamJoin",
    "Suppress",
    "Table",
    "TableAggregate",
    "TableGrouping",
    "TableJoin",
    "TimestampExtractor",
    "WindowKind",
]

Function: TypeAlias = Callable[..., Any]
WindowKind: TypeAlias = TimeWindows | SlidingWindows | SessionWindows
# (timestamp of the record, key, value, partition time or -1) -> timestamp
TimestampExtractor: TypeAlias = Callable[[int, Any, Any, int], int]
JoinKind: TypeAlias = Literal["inner", "left", "outer"]
# What travels through a repartition: a value, a table's change, or a foreign-key join's messages.
Payload: TypeAlias = Literal["value", "change", "subscription", "answer"]


@dataclass(frozen=True, kw_only=True)
class Node:
    """What all nodes have: a name, parents, stores, and the line of the program that made it."""

    name: str
    parents: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()
    unlisted_stores: tuple[str, ...] = ()  # of ``stores``; Kafka has none such, nor its description
    where: str = field(default="", compare=False)


@dataclass(frozen=True, kw_only=True)
class Source(Node):
    """Reads topics. An internal one is the far end of a repartition."""

    topics: tuple[str, ...]
    key_serde: Serde[Any] | None = None
    value_serde: Serde[Any] | None = None
    timestamp_extractor: TimestampExtractor | None = None
    offset_reset: Literal["earliest", "latest"] | None = None
    internal: bool = False
    payload: Payload = "value"


@dataclass(frozen=True, kw_only=True)
class Sink(Node):
    """Writes to a topic, or to the one a function names: of key, value, and metadata if it asks."""

    topic: str | Function
    key_serde: Serde[Any] | None = None
    value_serde: Serde[Any] | None = None
    partitioner: Function | None = None
    internal: bool = False
    payload: Payload = "value"
    partitions: int | None = None


@dataclass(frozen=True, kw_only=True)
class GlobalTable(Node):
    """A whole topic as a table on every task."""

    source: str
    topic: str
    key_serde: Serde[Any] | None = None
    value_serde: Serde[Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Stateless(Node):
    """One record in, none, one or several out, nothing remembered."""

    operation: Literal[
        "filter",
        "filter_not",
        "map",
        "map_values",
        "flat_map",
        "flat_map_values",
        "select_key",
        "peek",
        "foreach",
        "pass",
        "to_stream",
    ]
    function: Function | None = None
    with_key: bool = False


@dataclass(frozen=True, kw_only=True)
class Branch(Node):
    """Sends each record to the child of the first predicate that holds."""

    predicates: tuple[Function, ...]
    children: tuple[str, ...]
    default: str | None = None


@dataclass(frozen=True, kw_only=True)
class Table(Node):
    """A table made of updates, or of another table's; kept when it has a store of its own.

    ``supplier`` makes the `ValueTransformer` of a ``transform_values`` with state, once per task.
    ``sends_old_values``: what follows asks for the row before. By Kafka's rule a filter then drops
    updates without a row before and after, and a transformer without a store is asked for both.
    """

    operation: Literal["source", "filter", "filter_not", "map_values", "transform_values", "pass"]
    function: Function | None = None
    with_key: bool = False
    store: str | None = None
    versioned: bool = False
    supplier: Function | None = None
    sends_old_values: bool = False


@dataclass(frozen=True, kw_only=True)
class Aggregate(Node):
    """Folds the records of a key, or of a key in a window, into one value.

    ``merge`` joins two partial results: of sessions, or of partitions. ``number`` tells the nodes
    apart that fold several streams into one store.
    """

    store: str
    initializer: Function | None
    aggregator: Function
    window: WindowKind | None = None
    merge: Function | None = None
    emit: Literal["update", "close"] = "update"
    caching: bool = False
    number: int = 0

    @property
    def clock(self) -> str:
        """The name of its stream time: of the store, which keeps its name in an edited program."""
        return f"{self.store}/{self.number}"


@dataclass(frozen=True, kw_only=True)
class PartialAggregate(Node):
    """Folds the records of a key before they travel; what is folded leaves with each commit."""

    initializer: Function | None
    aggregator: Function


@dataclass(frozen=True, kw_only=True)
class TableGrouping(Node):
    """Turns updates of a table into updates under another key: subtract here, add there."""

    selector: Function


@dataclass(frozen=True, kw_only=True)
class TableAggregate(Node):
    """Folds the rows of a table: an update subtracts the old row and adds the new one."""

    store: str
    initializer: Function | None
    adder: Function
    subtractor: Function


@dataclass(frozen=True, kw_only=True)
class JoinBuffer(Node):
    """Keeps the records of one side of a stream-stream join for the other."""

    store: str


@dataclass(frozen=True, kw_only=True)
class StreamJoin(Node):
    """One side of a stream-stream join: looks into what the other side kept.

    ``pair`` names the node that both sides lead to, ``clock`` the stream time they share.
    """

    side: Literal["left", "right"]
    kind: JoinKind
    pair: str
    clock: str
    window: JoinWindows
    joiner: Function
    other_store: str
    outer_store: str | None = None
    prior: bool = False


@dataclass(frozen=True, kw_only=True)
class LookupJoin(Node):
    """Joins a stream with what a table, or a global table, holds at that moment."""

    table: str
    joiner: Function
    left: bool
    key_selector: Function | None = None
    buffer: str | None = None
    grace: int = 0


@dataclass(frozen=True, kw_only=True)
class TableJoin(Node):
    """One side of a table-table join: joins an update with the other table's value."""

    side: Literal["left", "right"]
    kind: JoinKind
    table: str
    other: str
    joiner: Function


@dataclass(frozen=True, kw_only=True)
class ForeignKeyStep(Node):
    """One step of a foreign-key join.

    Left rows *subscribe* at the right key; the right side *receives* this, *answers* it, and
    answers all its subscribers when it *changes*; the left side *resolves* the answers. ``store``
    holds subscriptions on the right side, and on the left side the versions that were answered.
    """

    step: Literal["subscribe", "receive", "answer", "change", "resolve"]
    left: bool
    store: str
    table: str
    foreign_key: Function | None = None
    joiner: Function | None = None


@dataclass(frozen=True, kw_only=True)
class Suppress(Node):
    """Holds updates of a table back: until windows close, for a time, or while there is room."""

    store: str
    table: str
    until: Literal["window_close", "time"]
    wait: int
    max_records: int | None = None
    max_bytes: int | None = None
    when_full: Literal["emit", "fail"] = "emit"


@dataclass(frozen=True, kw_only=True)
class Process(Node):
    """A processor of the user's own, made by ``supplier`` once per task."""

    supplier: Function
    values_only: bool = False


@dataclass(frozen=True, kw_only=True)
class AsyncCall(Node):
    """Calls a function for many records at once, through the engine, each key in order.

    ``function`` is the supplier of an `AsyncProcessor` when the operation is "process". ``lane``
    gives the lane of a record by its key and value. ``deterministic``: it answers the same for a
    record that is processed again.
    """

    operation: Literal["map", "map_values", "flat_map", "process", "batch"]
    function: Function
    options: Options
    resource: Function | None = None
    lane: Function | None = None
    deterministic: bool = False

    @property
    def has_lanes(self) -> bool:
        """Whether some records are more urgent than others."""
        return len(self.options.lanes.lanes) > 1
