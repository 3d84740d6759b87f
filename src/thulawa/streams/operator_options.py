"""Option objects: what can be said about a source, a store, a join, besides what it does.

All are frozen and keyword-only. As in Kafka Streams each begins with what is most often given:
``Materialized.as_("counts")``, ``Consumed.with_(Serdes.string(), Serdes.json())``.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, Self, TypeVar

from thulawa.core.callers import caller
from thulawa.core.durations import Duration, milliseconds
from thulawa.core.errors import TopologyError
from thulawa.core.serdes import Serde
from thulawa.topology.nodes import TimestampExtractor

__all__ = [
    "Branched",
    "Consumed",
    "Grouped",
    "Joined",
    "Materialized",
    "Named",
    "Produced",
    "Repartitioned",
    "StreamJoined",
    "TableJoined",
    "chosen",
    "kept_as",
]

K = TypeVar("K")
V = TypeVar("V")
Options = TypeVar("Options")


def chosen(options: Options | None, kind: type[Options]) -> Options:
    """Return the options, or those that say nothing; refuse the options of something else."""
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
        """Name it."""
        return cls(name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Serialized(Named, Generic[K, V]):
    """A name, and how keys and values are written."""

    key_serde: Serde[K] | None = None
    value_serde: Serde[V] | None = None

    def __post_init__(self) -> None:
        for serde in (self.key_serde, self.value_serde):
            if serde is not None and not isinstance(serde, Serde):
                raise TopologyError(
                    f"a serde is a Serde, as Serdes.string() is one, not a {type(serde).__name__}",
                    where=caller(),
                )

    @classmethod
    def with_(cls, key_serde: Serde[K] | None, value_serde: Serde[V] | None) -> Self:
        """Say how keys and values are written."""
        return cls(key_serde=key_serde, value_serde=value_serde)

    def named(self, name: str) -> Self:
        """Return the same under a name."""
        return replace(self, name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumed(_Serialized[K, V]):
    """How a topic is read."""

    timestamp_extractor: TimestampExtractor | None = None
    offset_reset: Literal["earliest", "latest"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced(_Serialized[K, V]):
    """How a topic is written; ``partitioner(key, value, partitions)`` gives a partition."""

    partitioner: Callable[[Any, Any, int], int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped(_Serialized[K, V]):
    """How a stream is grouped; its name is that of the repartition, if one is needed.

    With ``two_step`` records are aggregated where they are first, and only what they came to
    travels to the partition of their key: once per key and commit, not once per record. Then
    so do the updates: a table's changes leave as its parts come in. ``count`` can do this,
    ``reduce`` if ``reduce(reduce(a, b), c)`` equals ``reduce(a, reduce(b, c))``, and
    ``aggregate`` with a ``merger`` to which the initial value adds nothing.
    """

    two_step: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Repartitioned(_Serialized[K, V]):
    """How a stream is repartitioned."""

    partitions: int | None = None
    partitioner: Callable[[Any, Any, int], int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined(_Serialized[K, V]):
    """How a stream is joined with a table.

    With ``grace`` records wait that long, in stream time, for the table's older rows; the
    table must be versioned.
    """

    other_value_serde: Serde[Any] | None = None
    grace: Duration | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamJoined(_Serialized[K, V]):
    """How two streams are joined; ``store_name`` is what both window stores are named after."""

    other_value_serde: Serde[Any] | None = None
    store_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableJoined(Named):
    """How two tables are joined by a foreign key.

    The serdes are those of the two tables' keys, where the tables have none; the partitioners,
    functions of (key, value, partitions), say how their topics are partitioned. The value is None.
    """

    key_serde: Serde[Any] | None = None
    other_key_serde: Serde[Any] | None = None
    partitioner: Callable[..., int] | None = None
    other_partitioner: Callable[..., int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Branched(Named):
    """The name of a branch, or what is to be done with it instead of returning it."""

    chain: Callable[[Any], Any] | None = None

    @classmethod
    def with_function(cls, chain: Callable[[Any], Any], name: str | None = None) -> Self:
        """Return what the function makes of the branch; nothing when it gives None."""
        return cls(name=name, chain=chain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Materialized(_Serialized[K, V]):
    """The store of a table.

    ``retention`` is how long windows are kept, ``history`` makes the store versioned and is how
    far back it can be asked. With ``caching`` only the last update of a key leaves per commit.
    With ``changelog`` an application can rebuild the store from a topic, should it lose its state.
    """

    retention: Duration | None = None
    history: Duration | None = None
    caching: bool = False
    changelog: bool = False

    @classmethod
    def versioned(cls, name: str | None = None, *, history: Duration) -> Self:
        """Keep what the values were, that far back."""
        milliseconds(history, name="history")
        return cls(name=name, history=history)

    def with_caching(self) -> Self:
        """Let only the last update of a key leave per commit."""
        return replace(self, caching=True)

    def with_retention(self, retention: Duration) -> Self:
        """Keep windows that long."""
        return replace(self, retention=retention)


def kept_as(
    materialized: Materialized[Any, Any] | None,
    key_serde: Serde[Any] | None,
    value_serde: Serde[Any] | None = None,
) -> Materialized[Any, Any] | None:
    """Return how a store is kept: by these serdes where it has none of its own."""
    options = chosen(materialized, Materialized)
    key_serde, value_serde = options.key_serde or key_serde, options.value_serde or value_serde
    if (key_serde, value_serde) == (options.key_serde, options.value_serde):
        return materialized
    return replace(options, key_serde=key_serde, value_serde=value_serde)
