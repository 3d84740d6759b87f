"""Interactive queries: read a store as of the last committed micro-batch.

The driver reads Spark's state with Spark's state reader; the running query is not affected.
"""

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from pyspark.sql import SparkSession

from thulawa.core.records import Windowed
from thulawa.errors import ConfigurationError, StateError
from thulawa.runtime.planning import Plan, StagedSubTopology
from thulawa.spark.micro_batch.checkpoint import Checkpoint
from thulawa.state.backing import sort_key
from thulawa.state.paged import read_stores
from thulawa.state.specs import Store
from thulawa.state.window_stores import SessionStore, WindowStore
from thulawa.topology.nodes import GlobalTable


class ReadOnlyStore:
    """A snapshot of one store over all tasks.

    Keys of window and session stores are `Windowed`. ``tasks`` holds the store of each task.
    """

    def __init__(self, name: str, tasks: Mapping[int, Store]) -> None:
        self.name = name
        self.tasks = tasks

    def get(self, key: Hashable) -> Any:
        """Return the value of a key, or None."""
        found = (_value(self.name, store, key) for store in self.tasks.values())
        return next((value for value in found if value is not None), None)

    def all(self) -> Iterator[tuple[Any, Any]]:
        """Return an iterator over all keys and values in key order."""
        found = [pair for store in self.tasks.values() for pair in store.all()]  # type: ignore[union-attr]
        return iter(sorted(found, key=lambda pair: sort_key(pair[0])))

    def range(self, first: Hashable | None, last: Hashable | None) -> Iterator[tuple[Any, Any]]:
        """Return an iterator over keys from ``first`` to ``last``, inclusive; None: no bound."""
        low = None if first is None else sort_key(first)
        high = None if last is None else sort_key(last)
        return (
            (key, value)
            for key, value in self.all()
            if (low is None or sort_key(key) >= low) and (high is None or sort_key(key) <= high)
        )

    def __len__(self) -> int:
        return sum(len(store) for store in self.tasks.values())


def _value(name: str, store: Store, key: Any) -> Any:
    if not isinstance(store, WindowStore | SessionStore):
        return store.get(key)  # type: ignore[union-attr]
    if not isinstance(key, Windowed):
        raise ConfigurationError(
            f"{name!r} has windows: get(Windowed(key, Window(start, end))), as all() gives its keys"
        )
    if isinstance(store, SessionStore):
        return store.fetch(key.key, key.window)
    entry = store.fetch(key.key, key.window.start)
    return None if entry is None else entry[0]


def read_store(spark: SparkSession, checkpoint: Checkpoint, made: Plan, name: str) -> ReadOnlyStore:
    """Return a store as of the last committed micro-batch."""
    part = _owner(made, name)
    prefix = checkpoint.manifest().stores[name].prefix
    # Spark numbers stateful operators from the sink backwards
    entries = _state_of(spark, checkpoint, made.stages - part.stage)
    spec = made.topology.stores[name]
    tasks = {}
    for number in range(len(part.tasks)):
        stores = read_stores(_Prefixed(entries, f"{prefix}/{number}/"), {name: spec})
        tasks[number] = spec.open(stores.backing(name))
    return ReadOnlyStore(name, tasks)


def _owner(made: Plan, name: str) -> StagedSubTopology:
    owners = {store: part for part in made.parts.values() for store in part.group.stores}
    if name in owners:
        return owners[name]
    for node in made.topology.nodes.values():
        if isinstance(node, GlobalTable) and name in node.stores:
            raise ConfigurationError(
                f"the store {name!r} is that of a global table, which every task has a copy of; "
                f"read its topic {node.topic!r}, or declare it as a table"
            )
    raise ConfigurationError(f"there is no store {name!r}; there are {sorted(owners)}")


def _state_of(spark: SparkSession, checkpoint: Checkpoint, operator: int) -> dict[str, bytes]:
    reader = spark.read.format("statestore").option("operatorId", operator)
    try:
        rows = reader.option("stateVarName", "state").load(checkpoint.query_path)
        found = rows.selectExpr("user_map_key.name", "user_map_value.data").collect()
    except Exception as error:
        raise StateError(
            "the state cannot be read: no batch has been committed yet, or it is damaged"
        ) from error
    return {row[0]: bytes(row[1]) for row in found}


class _Prefixed:
    """The state of one task: the entries with its prefix."""

    def __init__(self, entries: Mapping[str, bytes], prefix: str) -> None:
        self._entries = entries
        self._prefix = prefix

    def get(self, name: str) -> bytes | None:
        return self._entries.get(self._prefix + name)
