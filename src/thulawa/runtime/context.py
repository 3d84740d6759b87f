"""The context that the nodes of a task share: current record, time, stores, collector."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from thulawa.core.records import Headers, RecordMetadata
from thulawa.errors import StreamError
from thulawa.runtime.blocks import ForwardBlock, RawRecord
from thulawa.runtime.handlers import ErrorRecord, Handler, Handlers, apply_response
from thulawa.runtime.in_flight import InFlight
from thulawa.runtime.metrics import Reason, RecordCounts
from thulawa.runtime.punctuation import Punctuations
from thulawa.runtime.views import Views
from thulawa.state.backing import Backing
from thulawa.state.specs import Store
from thulawa.topology.nodes import Sink
from thulawa.topology.topology import Topology

if TYPE_CHECKING:
    from thulawa.runtime.partition_queues import RecordQueue

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
        topology: Topology,
        handlers: Handlers,
        backing: Callable[[str], Backing],
        global_stores: Mapping[str, Store],
    ) -> None:
        self.task_id = task_id
        self.collector = collector
        self.handlers = handlers
        self.queue: RecordQueue | None = None  # of the current record
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
        self.views = Views(topology.nodes, self.store)
        self._error_record: tuple[RawRecord | None] | None = None
        self._specs = topology.stores
        self._backing = backing
        self._stores = dict(global_stores)

    def store(self, name: str) -> Any:
        """Return a store; open it first if necessary."""
        if name not in self._stores:
            self._stores[name] = self._specs[name].open(self._backing(name))
        return self._stores[name]

    def metadata(self) -> RecordMetadata | None:
        """Return topic, partition and offset of the current record; None in a punctuation."""
        if self.topic is None:
            return None
        return RecordMetadata(self.topic, self.partition, self.offset)

    def raw(self) -> RawRecord | None:
        """Return the input record that errors are attributed to; None if it is not known."""
        if self.topic is None:
            return None
        if self._error_record is not None:
            return self._error_record[0]
        return None if self.queue is None else self.queue.raw

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

    def handle(self, handler: Handler, error: StreamError, record: ErrorRecord) -> None:
        """Call the handler of an error; return if the record is dropped, else raise."""
        reason = apply_response(handler(error, record), error, self.collector.send)
        self.drop(record.node or "", reason)


@dataclass(frozen=True, slots=True)
class Wiring:
    """The arguments that the function of a node is built with, besides the node.

    ``forward`` passes a record to all ``children``, ``failed`` an error to the processing handler.
    ``closers`` are called when the task is closed.
    """

    context: TaskContext
    forward: Forward
    failed: Failed
    children: dict[str, Forward]
    punctuations: Punctuations
    closers: list[Callable[[], None]]
