"""The Processor API: base classes of user-defined processors, and their context."""

from collections.abc import Awaitable, Callable
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar

from thulawa.core.durations import Duration
from thulawa.core.records import Headers, Record, RecordMetadata
from thulawa.core.serdes import Serde

K = TypeVar("K")
V = TypeVar("V")
K1 = TypeVar("K1")
V1 = TypeVar("V1")
Context = TypeVar("Context")

PunctuationType: TypeAlias = Literal["stream_time", "wall_clock_time"]


class Cancellable(Protocol):
    """The result of `ProcessorContext.schedule`."""

    def cancel(self) -> None:
        """Cancel the punctuation."""


class ProcessorContext(Protocol[K1, V1]):
    """The context of a processor: forward, send, schedule, and access to stores and time."""

    @property
    def record_metadata(self) -> RecordMetadata | None:
        """Topic, partition and offset of the current record; None in a punctuation."""

    @property
    def stream_time(self) -> int:
        """The highest timestamp this task has seen, or -1."""

    @property
    def wall_clock_time(self) -> int:
        """The task's clock, in milliseconds."""

    @property
    def task_id(self) -> str:
        """Sub-topology and number of the task, such as ``0_3``."""

    def forward(self, record: Record[K1, V1], child: str | None = None) -> None:
        """Forward a record to all children, or to one by name."""

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
        """Send a record to a topic, with or without a sink; the default timestamp is stream time.

        Without serdes, bytes and text are sent as they are, other data as JSON. An async processor
        sends when the call has succeeded: a failed attempt sends nothing.
        """

    def schedule(
        self, interval: Duration, kind: PunctuationType, callback: Callable[[int], None]
    ) -> Cancellable:
        """Schedule a callback with the time at multiples of the interval; a jump calls it once.

        What the callback raises goes to the processing handler, without a record.
        """

    def state_store(self, name: str) -> Any:
        """Return a store that is connected to this processor."""

    def commit(self) -> None:
        """Request a commit after this record."""


class _WithContext(Generic[Context]):
    context: Context

    def init(self, context: Context) -> None:
        """Initialize with the context; called once, before any record."""
        self.context = context

    def close(self) -> None:
        """Release what `init` acquired."""


class Processor(_WithContext[ProcessorContext[K1, V1]], Generic[K, V, K1, V1]):
    """Base class of processors; pass the subclass, or a function that creates one, to ``process``.

    >>> class Twice(Processor[str, int, str, int]):
    ...     def process(self, record):
    ...         self.context.forward(record.with_value(record.value * 2))
    """

    def process(self, record: Record[K, V]) -> None:
        """Process one record."""
        raise NotImplementedError


class AsyncProcessor(_WithContext[ProcessorContext[K1, V1]], Generic[K, V, K1, V1]):
    """Base class of async processors; no other call for the same key runs meanwhile."""

    def process(self, record: Record[K, V]) -> Awaitable[None]:
        """Process one record; records of other keys are processed concurrently."""
        raise NotImplementedError


class ValueTransformerContext(ProcessorContext[K1, V1], Protocol[K1, V1]):
    """The context of a `ValueTransformer`, which cannot forward or schedule."""

    @property
    def timestamp(self) -> int:
        """The timestamp of the current row; -1 if a join reads a row that does not exist."""


class ValueTransformer(_WithContext[ValueTransformerContext[K, V1]], Generic[K, V, V1]):
    """Base class of transformers; pass the subclass, or a supplier, to ``transform_values``."""

    def transform(self, key: K, value: V | None) -> V1 | None:
        """Return the new row; a value or result of None means that there is no row."""
        raise NotImplementedError
