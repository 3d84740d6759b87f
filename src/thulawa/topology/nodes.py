"""The kinds of nodes, as frozen dataclasses.

A node names its parents and its stores, and holds the user's functions. The runtime defines how
they run, the renderers how they are described.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from thulawa.core.callers import caller
from thulawa.core.serdes import Serde
from thulawa.engine import Options
from thulawa.topology.windows import JoinWindows, SessionWindows, SlidingWindows, TimeWindows

Function: TypeAlias = Callable[..., Any]
WindowKind: TypeAlias = TimeWindows | SlidingWindows | SessionWindows
# (timestamp of the record, key, value, partition time or -1) -> timestamp
TimestampExtractor: TypeAlias = Callable[[int, Any, Any, int], int]
JoinKind: TypeAlias = Literal["inner", "left", "outer"]


@dataclass(frozen=True, kw_only=True)
class Node:
    """The fields of all nodes: name, parents, stores, and the user's line that created it."""

    name: str
    parents: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()
    unlisted_stores: tuple[str, ...] = ()  # of ``stores``: not in Kafka, nor in `describe`
    where: str = field(default_factory=caller, compare=False)


@dataclass(frozen=True, kw_only=True)
class Source(Node):
    """Reads topics; an internal source reads a repartition."""

    topics: tuple[str, ...]
    key_serde: Serde[Any] | None = None
    value_serde: Serde[Any] | None = None
    timestamp_extractor: TimestampExtractor | None = None
    offset_reset: Literal["earliest", "latest"] | None = None
    internal: bool = False


@dataclass(frozen=True, kw_only=True)
class Sink(Node):
    """Writes to a topic, or to the one that a function of key, value (and metadata) returns."""

    topic: str | Function
    key_serde: Serde[Any] | None = None
    value_serde: Serde[Any] | None = None
    partitioner: Function | None = None
    internal: bool = False
    answers: bool = False  # of a foreign-key join, to the left table
    partitions: int | None = None


@dataclass(frozen=True, kw_only=True)
class GlobalTable(Node):
    """A table of a whole topic, available in every task."""

    source: str
    topic: str
    key_serde: Serde[Any] | None = None
    value_serde: Serde[Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Stateless(Node):
    """A stateless operation: any number of outputs per record."""

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
    """Sends each record to the child of the first true predicate."""

    predicates: tuple[Function, ...]
    children: tuple[str, ...]
    default: str | None = None


@dataclass(frozen=True, kw_only=True)
class Table(Node):
    """A table of updates, or derived from another table; materialized if it has a store.

    ``supplier`` creates the `ValueTransformer` of a stateful ``transform_values``, once per task.
    ``sends_old_values``: child nodes need the old row. By Kafka's rules a filter then drops updates
    without a row before and after, and a transformer without a store computes both rows.
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

    ``merge`` merges two partial results: of sessions, or of partitions. ``number`` distinguishes
    the nodes that fold several streams into one store.
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
        """The name of its stream clock, after the store, whose name survives edits."""
        return f"{self.store}/{self.number}"


@dataclass(frozen=True, kw_only=True)
class PartialAggregate(Node):
    """Folds the records of a key before a repartition; emits partial results with each commit."""

    initializer: Function | None
    aggregator: Function
    key_serde: Serde[Any] | None = None


@dataclass(frozen=True, kw_only=True)
class TableGrouping(Node):
    """Turns updates of a table into updates under other keys: subtract the old, add the new."""

    selector: Function
    key_serde: Serde[Any] | None = None  # of the new key


@dataclass(frozen=True, kw_only=True)
class TableAggregate(Node):
    """Folds the rows of a table: an update subtracts the old row and adds the new one."""

    store: str
    initializer: Function | None
    adder: Function
    subtractor: Function


@dataclass(frozen=True, kw_only=True)
class JoinBuffer(Node):
    """Stores the records of one side of a stream-stream join for the other."""

    store: str


@dataclass(frozen=True, kw_only=True)
class StreamJoin(Node):
    """One side of a stream-stream join: looks up the stored records of the other side.

    ``pair`` names the child node of both sides, ``clock`` the stream clock they share.
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
    """Joins a stream with the current rows of a table or global table."""

    table: str
    joiner: Function
    left: bool
    key_selector: Function | None = None
    buffer: str | None = None
    grace: int = 0


@dataclass(frozen=True, kw_only=True)
class TableJoin(Node):
    """One side of a table-table join: joins an update with the other table's row."""

    side: Literal["left", "right"]
    kind: JoinKind
    table: str
    other: str
    joiner: Function


@dataclass(frozen=True, kw_only=True)
class ForeignKeyStep(Node):
    """One step of a foreign-key join.

    Left rows *subscribe* at the right key; the right side *receives* the subscription, *answers*
    it, and answers all subscribers when its row *changes*; the left side *resolves* the answers.
    ``store`` holds subscriptions on the right side, and the answered versions on the left side.
    ``key_serde`` is that of left keys, ``foreign_serde`` that of right keys. ``join`` is the same
    in all steps of a join.
    """

    step: Literal["subscribe", "receive", "answer", "change", "resolve"]
    join: str
    left: bool
    store: str
    table: str
    foreign_key: Function | None = None
    joiner: Function | None = None
    key_serde: Serde[Any] | None = None
    foreign_serde: Serde[Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Suppress(Node):
    """Holds updates of a table until windows close, for a time, or until the buffer is full."""

    store: str
    table: str
    until: Literal["window_close", "time"]
    wait: int
    max_records: int | None = None
    max_bytes: int | None = None
    when_full: Literal["emit", "fail"] = "emit"


@dataclass(frozen=True, kw_only=True)
class Process(Node):
    """A user-defined processor, created by ``supplier`` once per task."""

    supplier: Function
    values_only: bool = False


@dataclass(frozen=True, kw_only=True)
class AsyncCall(Node):
    """Calls a function for many records concurrently, through the engine, each key in order.

    ``function`` is the supplier of an `AsyncProcessor` if the operation is "process". ``lane``
    returns the lane of a record by its key and value. ``deterministic``: the results are the same
    when a record is processed again.
    """

    operation: Literal["map", "map_values", "flat_map", "process", "batch"]
    function: Function
    options: Options
    resource: Function | None = None
    lane: Function | None = None
    deterministic: bool = False
    key_serde: Serde[Any] | None = None

    @property
    def has_lanes(self) -> bool:
        """Whether there are several lanes."""
        return len(self.options.lanes.lanes) > 1
