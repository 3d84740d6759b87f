"""The context that the nodes of a task share: current record, time, stores, collector."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias, runtime_checkable

from thulawa.core.records import Headers, RecordMetadata
from thulawa.errors import StreamError
from thulawa.runtime.blocks import ForwardBlock, RawRecord
from thulawa.runtime.in_flight import InFlight
from thulawa.runtime.metrics import Reason, RecordCounts
from thulawa.state.backing import Backing
from thulawa.state.specs import Store, StoreSpec
from thulawa.topology.nodes import Node, Sink

__all__ = ["Collector", "DirectCollector", "Failed", "Forward", "StreamClock", "TaskContext"]

# a node as a function of key, value, timestamp, headers
Forward: TypeAlias = Callable[[Any, Any, int, Headers], None]
# error, key, value, timestamp, headers; returns if the record is to be skipped, else raises
Failed: TypeAlias = Callable[[Exception, Any, Any, int, Headers], None]


NO_TIME = -1


class Collector(Protocol):
    """The record collector of a task: receives its outputs."""

    def send(
        self, sink: Sink | None, topic: str, key: Any, value: Any, timestamp: int, headers: Headers
    ) -> None:
        """Send one output by the serdes of ``sink``; None: a dead letter, written as it is."""


@runtime_checkable
class DirectCollector(Collector, Protocol):
    """A collector with faster functions for a sink that is known beforehand."""

    def sender(self, sink: Sink, topic: str) -> Forward | None:
        """Return a function that sends the outputs of a sink; None: use `send`."""

    def block_sender(self, sink: Sink, topic: str) -> ForwardBlock | None:
        """Return a function that sends blocks of a sink's outputs; None: not possible."""


class StreamClock:
    """The stream time of one node or pair of nodes; it never goes back.

    Clocks are persisted by name. They are named after stores, because generated names of nodes
    change when a program is edited.
    """

    __slots__ = ("emitted", "time")

    def __init__(self) -> None:
        self.time = NO_TIME
        self.emitted = NO_TIME  # closed windows have been emitted up to this time


class TaskContext:
    """The state of a task besides its stores."""

    def __init__(
        self,
        task_id: str,
        collector: Collector,
        specs: dict[str, StoreSpec],
        backing: Callable[[str], Backing],
        global_stores: dict[str, Store],
    ) -> None:
        self.task_id = task_id
        self.collector = collector
        self.topic: str | None = None
        self.partition = 0
        self.offset = 0
        self.stream_time = NO_TIME
        self.wall_clock_time = 0
        self.commit_requested = False
        self.in_flight: InFlight | None = None
        """The unfinished input records, for a host that commits while calls are in flight."""
        self.counts: RecordCounts = Counter()
        self.clocks: dict[str, StreamClock] = {}
        self.flushes: list[Callable[[], None]] = []
        self.handle: Callable[[StreamError, Node, Any, Any, int, Headers], None] = _raise
        self.current_raw: Callable[[], RawRecord | None] = lambda: None
        self._error_record: tuple[RawRecord | None] | None = None
        self._specs = specs
        self._backing = backing
        self._stores: dict[str, Store] = {}
        self._global_stores = global_stores

    def store(self, name: str) -> Any:
        """Return a store; open it first if necessary."""
        store = self._stores.get(name, self._global_stores.get(name))
        if store is None:
            store = self._stores[name] = self._specs[name].open(self._backing(name))
        return store

    def metadata(self) -> RecordMetadata | None:
        """Return topic, partition and offset of the current record; None in a punctuation."""
        if self.topic is None:
            return None
        return RecordMetadata(self.topic, self.partition, self.offset)

    def raw(self) -> RawRecord | None:
        """Return the input record that errors are attributed to; None if it is not known."""
        if self.topic is None:
            return None
        return self.current_raw() if self._error_record is None else self._error_record[0]

    @contextmanager
    def attribute_errors_to(self, raw: RawRecord | None) -> Iterator[None]:
        """Attribute errors to another record than the current one, or to none (None)."""
        before, self._error_record = self._error_record, (raw,)
        try:
            yield
        finally:
            self._error_record = before

    def clock(self, name: str) -> StreamClock:
        """Return the clock of a name."""
        return self.clocks.setdefault(name, StreamClock())

    def drop(self, node: str, reason: Reason = "rule") -> None:
        """Count a record that a node drops."""
        self.counts[node, reason] += 1


def _raise(error: StreamError, *_: Any) -> None:
    raise error
