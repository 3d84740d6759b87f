"""The option objects of operators: names, serdes, stores, partitioners.

All are frozen and keyword-only, with Kafka Streams' factory methods for the most common options:
``Materialized.as_("counts")``, ``Consumed.with_(Serdes.string(), Serdes.json())``.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, Self, TypeAlias, TypeVar

from thulawa.core.callers import topology_error
from thulawa.core.durations import Duration, milliseconds
from thulawa.core.serdes import Serde
from thulawa.errors import ConfigurationError
from thulawa.streams.type_variables import K, V
from thulawa.topology.nodes import TimestampExtractor

Options = TypeVar("Options")
AnySerde: TypeAlias = Serde[Any] | None
SerdePair: TypeAlias = tuple[AnySerde, AnySerde]
Partitioner: TypeAlias = Callable[[Any, Any, int], int]


def or_default(options: Options | None, kind: type[Options]) -> Options:
    """Return the options, or default ones; reject options of another kind."""
    if options is None:
        return kind()
    if not isinstance(options, kind):
        raise topology_error(
            f"the options of this step are a {kind.__name__}, not a {type(options).__name__}"
        )
    return options


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """The name of a node."""

    name: str | None = None

    @classmethod
    def as_(cls, name: str) -> Self:
        """Return options with a name."""
        return cls(name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Serialized(Named, Generic[K, V]):
    """A name, and the serdes of keys and values."""

    key_serde: Serde[K] | None = None
    value_serde: Serde[V] | None = None

    def __post_init__(self) -> None:
        for serde in (self.key_serde, self.value_serde):
            if serde is not None and not isinstance(serde, Serde):
                raise topology_error(
                    f"a serde is a Serde, such as Serdes.string(), not a {type(serde).__name__}"
                )

    @classmethod
    def with_(cls, key_serde: Serde[K] | None, value_serde: Serde[V] | None) -> Self:
        """Return options with serdes."""
        return cls(key_serde=key_serde, value_serde=value_serde)

    def named(self, name: str) -> Self:
        """Return the options with a name."""
        return replace(self, name=name)

    def serdes(self, key_serde: AnySerde = None, value_serde: AnySerde = None) -> SerdePair:
        """Return the serdes of keys and values, with these defaults."""
        return self.key_serde or key_serde, self.value_serde or value_serde

    def with_defaults(self, key_serde: AnySerde = None, value_serde: AnySerde = None) -> Self:
        """Return the options with these serdes where they have none."""
        key_serde, value_serde = self.serdes(key_serde, value_serde)
        return replace(self, key_serde=key_serde, value_serde=value_serde)


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumed(Serialized[K, V]):
    """Options of a source."""

    timestamp_extractor: TimestampExtractor | None = None
    offset_reset: Literal["earliest", "latest"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced(Serialized[K, V]):
    """Options of a sink; ``partitioner(key, value, partitions)`` returns a partition."""

    partitioner: Partitioner | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped(Serialized[K, V]):
    """Options of a grouping; its name is that of the repartition, if one is needed.

    With ``two_step`` records are aggregated before the repartition, which then transports one
    partial result per key and commit instead of every record; the table is updated once per partial
    result. This works for ``count``, for ``reduce`` if the reducer is associative, and for
    ``aggregate`` with a ``merger`` for which the initial value is neutral.
    """

    two_step: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Repartitioned(Serialized[K, V]):
    """Options of a repartition."""

    partitions: int | None = None
    partitioner: Partitioner | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined(Serialized[K, V]):
    """Options of a stream-table join.

    With ``grace`` records are buffered that long, in stream time, for late updates of the table,
    which must be versioned.
    """

    other_value_serde: Serde[Any] | None = None
    grace: Duration | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamJoined(Serialized[K, V]):
    """Options of a stream-stream join; ``store_name`` is the prefix of both window stores."""

    other_value_serde: Serde[Any] | None = None
    store_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableJoined(Named):
    """Options of a foreign-key join.

    The serdes are those of the two tables' keys, if the tables have none. The partitioners are
    functions of (key, value, partitions) by which their topics are partitioned; value is None.
    """

    key_serde: Serde[Any] | None = None
    other_key_serde: Serde[Any] | None = None
    partitioner: Callable[..., int] | None = None
    other_partitioner: Callable[..., int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Branched(Named):
    """Options of a branch: its name, and a function that transforms or consumes it."""

    chain: Callable[[Any], Any] | None = None

    @classmethod
    def with_function(cls, chain: Callable[[Any], Any], name: str | None = None) -> Self:
        """Return options by which the branch is the function's result; None: no branch."""
        return cls(name=name, chain=chain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Materialized(Serialized[K, V]):
    """Options of a table's store.

    ``retention`` is how long windows are stored; ``history`` makes the store versioned and is how
    far back it can be queried. With ``caching`` only the last update of a key per commit is
    emitted. With ``changelog`` the store can be restored from a topic if its state is lost.
    """

    retention: Duration | None = None
    history: Duration | None = None
    caching: bool = False
    changelog: bool = False

    @classmethod
    def versioned(cls, name: str | None = None, *, history: Duration) -> Self:
        """Return options of a versioned store with this history."""
        milliseconds(history, name="history")
        return cls(name=name, history=history)

    def with_caching(self) -> Self:
        """Return the options with caching: emit only the last update of a key per commit."""
        return replace(self, caching=True)

    def with_retention(self, retention: Duration) -> Self:
        """Return the options with this retention of windows."""
        return replace(self, retention=retention)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suppressed:
    """Hold updates until windows close, or for a time.

    >>> Suppressed.until_time_limit("5 s").with_max_records(1000).wait
    5000
    """

    until: Literal["window_close", "time"]
    wait: int = 0
    name: str | None = None
    max_records: int | None = None
    max_bytes: int | None = None
    when_full: Literal["emit", "fail"] = "emit"

    @classmethod
    def until_window_closes(cls) -> Self:
        """Emit the one final result of each window; fail when the buffer is full."""
        return cls(until="window_close", when_full="fail")

    @classmethod
    def until_time_limit(cls, wait: Duration) -> Self:
        """Emit the last update of each key this long, in stream time, after the first."""
        return cls(until="time", wait=milliseconds(wait, name="wait"))

    def with_name(self, name: str) -> Self:
        """Return the options with a name for the node, after which its store is named."""
        return replace(self, name=name)

    def with_max_records(self, records: int) -> Self:
        """Return the options with a limit of buffered keys."""
        if records < 0:
            raise ConfigurationError("max_records must not be negative")
        return replace(self, max_records=records)

    def with_max_bytes(self, size: int) -> Self:
        """Return the options with an approximate limit of buffered bytes."""
        if size < 0:
            raise ConfigurationError("max_bytes must not be negative")
        return replace(self, max_bytes=size)

    def emit_early_when_full(self) -> Self:
        """Return options that emit the oldest update early when the buffer is full."""
        if self.until == "window_close":
            raise ConfigurationError(
                "results cannot be final and early: use until_time_limit, or fail when full"
            )
        return replace(self, when_full="emit")

    def shut_down_when_full(self) -> Self:
        """Return options that fail when the buffer is full."""
        return replace(self, when_full="fail")
