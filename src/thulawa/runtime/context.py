"""What the nodes of a task share: the record at hand, time, stores, and where outputs go."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias, runtime_checkable

from thulawa.core.errors import StreamError
from thulawa.core.records import Headers, RecordMetadata
from thulawa.runtime.blocks import ForwardBlock
from thulawa.runtime.metrics import Reason, RecordCounts
from thulawa.state.backing import Backing
from thulawa.state.specs import Store, StoreSpec
from thulawa.topology.nodes import Node, Sink

__all__ = ["Collector", "DirectCollector", "Failed", "Forward", "StreamClock", "TaskContext"]

# key, value, timestamp, headers: a node is a function of these
Forward: TypeAlias = Callable[[Any, Any, int, Headers], None]
# error, key, value, timestamp, headers: returns when the record is to be skipped
Failed: TypeAlias = Callable[[Exception, Any, Any, int, Headers], None]

# offset, timestamp, key, value, headers, as they came
Raw: TypeAlias = tuple[int, int, Any, Any, Headers]

NO_TIME = -1


class Collector(Protocol):
    """Where a task's outputs go."""

    def send(
        self, sink: Sink | None, topic: str, key: Any, value: Any, timestamp: int, headers: Headers
    ) -> None:
        """Take one output; ``sink`` says how it is written, None: as it is."""


@runtime_checkable
class DirectCollector(Collector, Protocol):
    """A collector that can be quicker where it knows the sink beforehand."""

    def sender(self, sink: Sink, topic: str) -> Forward | None:
        """Return what takes the outputs of a sink; None: `send` does."""

    def block_sender(self, sink: Sink, topic: str) -> ForwardBlock | None:
        """Return what takes blocks of them; None: nothing does."""


class StreamClock:
    """A stream time of one node or pair of nodes; it never goes back.

    Clocks are named, so that a host can keep them with the task's state: after stores, for names
    of nodes change when a program is edited.
    """

    __slots__ = ("emitted", "time")

    def __init__(self) -> None:
        self.time = NO_TIME
        self.emitted = NO_TIME  # up to when closed windows have been emitted


class TaskContext:
    """The state of a task that is not in a store."""

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
        self.counts: RecordCounts = Counter()
        self.clocks: dict[str, StreamClock] = {}
        self.flushes: list[Callable[[], None]] = []
        self.handle: Callable[[StreamError, Node, Any, Any, int, Headers], None] = _raise
        self.at_hand: Callable[[], Raw | None] = lambda: None
        self._instead: tuple[Raw | None] | None = None
        self._specs = specs
        self._backing = backing
        self._stores: dict[str, Store] = {}
        self._global_stores = global_stores

    def store(self, name: str) -> Any:
        """Open a store, or give the open one."""
        store = self._stores.get(name, self._global_stores.get(name))
        if store is None:
            store = self._stores[name] = self._specs[name].open(self._backing(name))
        return store

    def metadata(self) -> RecordMetadata | None:
        """Tell where the record at hand is from; None in a punctuation."""
        if self.topic is None:
            return None
        return RecordMetadata(self.topic, self.partition, self.offset)

    def raw(self) -> Raw | None:
        """Return the record that errors are about, as it came; None: it is known no more."""
        if self.topic is None:
            return None
        return self.at_hand() if self._instead is None else self._instead[0]

    @contextmanager
    def about(self, raw: Raw | None) -> Iterator[None]:
        """Let errors be about another record than the one at hand: one that had waited."""
        before, self._instead = self._instead, (raw,)
        try:
            yield
        finally:
            self._instead = before

    def clock(self, name: str) -> StreamClock:
        """Return the clock of that name."""
        return self.clocks.setdefault(name, StreamClock())

    def drop(self, node: str, reason: Reason = "rule") -> None:
        """Count a record that a node leaves out."""
        self.counts[node, reason] += 1


def _raise(error: StreamError, *_: Any) -> None:
    raise error
