"""The Processor API: what a processor of the user's own is, and what it is given."""

from collections.abc import Awaitable, Callable
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar

from thulawa.core.durations import Duration
from thulawa.core.records import Headers, Record, RecordMetadata
from thulawa.core.serdes import Serde

__all__ = [
    "AsyncProcessor",
    "Cancellable",
    "Processor",
    "ProcessorContext",
    "ProcessorSupplier",
    "PunctuationType",
    "ValueTransformer",
    "ValueTransformerContext",
]

K = TypeVar("K")
V = TypeVar("V")
K1 = TypeVar("K1")
V1 = TypeVar("V1")

PunctuationType: TypeAlias = Literal["stream_time", "wall_clock_time"]


class Cancellable(Protocol):
    """What `ProcessorContext.schedule` gives."""

    def cancel(self) -> None:
        """Let the punctuation not come again."""


class ProcessorContext(Protocol[K1, V1]):
    """What a processor can do besides looking at its record."""

    @property
    def record_metadata(self) -> RecordMetadata | None:
        """Topic, partition and offset of the record at hand; None in a punctuation."""

    @property
    def stream_time(self) -> int:
        """The highest timestamp this task has seen, or -1."""

    @property
    def wall_clock_time(self) -> int:
        """The task's clock, in milliseconds."""

    @property
    def task_id(self) -> str:
        """Sub-topology and partition, as ``0_3``."""

    def forward(self, record: Record[K1, V1], child: str | None = None) -> None:
        """Hand a record to all children, or to one by name."""

    def send(
        self,
        topic: str,
        key: Any,
        value: Any,
        timestamp: int | None = None,
        headers: Headers = (),
        *,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
    ) -> None:
        """Send a record to a topic, whatever the topology's sinks are; by default at stream time.

        Without serdes it is sent as it is. In an async processor it leaves with what is
        forwarded, when the call has succeeded: an attempt that failed sends nothing.
        """

    def schedule(
        self, interval: Duration, kind: PunctuationType, callback: Callable[[int], None]
    ) -> Cancellable:
        """Call back with the time, at multiples of the interval; a jump of time calls once.

        What the callback raises goes to the processing handler, with a record of nothing.
        """

    def state_store(self, name: str) -> Any:
        """Return a store that was connected to this processor."""

    def commit(self) -> None:
        """Ask for a commit after this record."""


class Processor(Generic[K, V, K1, V1]):
    """Subclass it, and give the class (or a function that makes one) to ``process``.

    >>> class Twice(Processor[str, int, str, int]):
    ...     def process(self, record):
    ...         self.context.forward(record.with_value(record.value * 2))
    """

    context: ProcessorContext[K1, V1]

    def init(self, context: ProcessorContext[K1, V1]) -> None:
        """Take the context; called once, before any record."""
        self.context = context

    def process(self, record: Record[K, V]) -> None:
        """Process one record."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what was acquired in `init`."""


class ValueTransformerContext(ProcessorContext[K1, V1], Protocol[K1, V1]):
    """What a `ValueTransformer` can do besides looking at its row."""

    @property
    def timestamp(self) -> int:
        """The timestamp of the row at hand; -1: a join asks for a row that is not there."""


class ValueTransformer(Generic[K, V, V1]):
    """Subclass it, and give the class (or a function that makes one) to ``transform_values``."""

    context: ValueTransformerContext[K, V1]

    def init(self, context: ValueTransformerContext[K, V1]) -> None:
        """Take the context; called once, before any row. It cannot forward or schedule."""
        self.context = context

    def transform(self, key: K, value: V | None) -> V1 | None:
        """Return the new row; None, for the value or the result: there is no such row."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what was acquired in `init`."""


class AsyncProcessor(Generic[K, V, K1, V1]):
    """A processor that may wait. Its key is its own, stores included, while it runs."""

    context: ProcessorContext[K1, V1]

    def init(self, context: ProcessorContext[K1, V1]) -> None:
        """Take the context; called once, before any record."""
        self.context = context

    def process(self, record: Record[K, V]) -> Awaitable[None]:
        """Process one record; other keys are processed meanwhile."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what was acquired in `init`."""


ProcessorSupplier: TypeAlias = Callable[[], Processor[K, V, K1, V1]]
