"""The option objects of operators: names, serdes, stores, partitioners.

All are frozen and keyword-only, with Kafka Streams' factory methods for the most common options:
``Materialized.as_("counts")``, ``Consumed.with_(Serdes.string(), Serdes.json())``.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, Self, TypeVar

from thulawa.core.callers import caller
from thulawa.core.durations import Duration, milliseconds
from thulawa.core.serdes import Serde
from thulawa.errors import TopologyError
from thulawa.topology.nodes import TimestampExtractor

K = TypeVar("K")
V = TypeVar("V")
Options = TypeVar("Options")


def or_default(options: Options | None, kind: type[Options]) -> Options:
    """Return the options, or default ones; reject options of another kind."""
    if options is None:
        return kind()
    if not isinstance(options, kind):
        raise TopologyError(
            f"the options of this step are a {kind.__name__}, not a {type(options).__name__}",
            where=caller(),
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
class _Serialized(Named, Generic[K, V]):
    """A name, and the serdes of keys and values."""

    key_serde: Serde[K] | None = None
    value_serde: Serde[V] | None = None

    def __post_init__(self) -> None:
        for serde in (self.key_serde, self.value_serde):
            if serde is not None and not isinstance(serde, Serde):
                raise TopologyError(
                    f"a serde is a Serde, such as Serdes.string(), not a {type(serde).__name__}",
                    where=caller(),
                )

    @classmethod
    def with_(cls, key_serde: Serde[K] | None, value_serde: Serde[V] | None) -> Self:
        """Return options with serdes."""
        return cls(key_serde=key_serde, value_serde=value_serde)

    def named(self, name: str) -> Self:
        """Return the options with a name."""
        return replace(self, name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumed(_Serialized[K, V]):
    """Options of a source."""

    timestamp_extractor: TimestampExtractor | None = None
    offset_reset: Literal["earliest", "latest"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced(_Serialized[K, V]):
    """Options of a sink; ``partitioner(key, value, partitions)`` returns a partition."""

    partitioner: Callable[[Any, Any, int], int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped(_Serialized[K, V]):
    """Options of a grouping; its name is that of the repartition, if one is needed.

    With ``two_step`` records are aggregated before the repartition, which then transports one
    partial result per key and commit instead of every record; the table is updated once per partial
    result. This works for ``count``, for ``reduce`` if the reducer is associative, and for
    ``aggregate`` with a ``merger`` for which the initial value is neutral.
    """

    two_step: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Repartitioned(_Serialized[K, V]):
    """Options of a repartition."""

    partitions: int | None = None
    partitioner: Callable[[Any, Any, int], int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined(_Serialized[K, V]):
    """Options of a stream-table join.

    With ``grace`` records are buffered that long, in stream time, for late updates of the table,
    which must be versioned.
    """

    other_value_serde: Serde[Any] | None = None
    grace: Duration | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamJoined(_Serialized[K, V]):
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
class Materialized(_Serialized[K, V]):
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


def with_default_serdes(
    materialized: Materialized[Any, Any] | None,
    key_serde: Serde[Any] | None,
    value_serde: Serde[Any] | None = None,
) -> Materialized[Any, Any] | None:
    """Return the options with these serdes where they name none."""
    options = or_default(materialized, Materialized)
    key_serde, value_serde = options.key_serde or key_serde, options.value_serde or value_serde
    if (key_serde, value_serde) == (options.key_serde, options.value_serde):
        return materialized
    return replace(options, key_serde=key_serde, value_serde=value_serde)
