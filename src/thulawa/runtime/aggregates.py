"""Aggregations of streams without windows, partial aggregation, and the cache of aggregates."""

from collections.abc import Callable
from typing import Any, TypeAlias

from thulawa.core.records import Change, Headers, make_change
from thulawa.runtime.blocks import IMMUTABLE_TYPES, Block, ForwardBlock
from thulawa.runtime.context import Failed, Forward, TaskContext, Wiring
from thulawa.state.key_identity import Keys
from thulawa.state.stores import KeyValueStore, VersionedStore
from thulawa.topology.nodes import Aggregate, PartialAggregate

# new value, old value, is latest, timestamp; None: no result
_Result: TypeAlias = tuple[Any, Any, bool, int] | None
_Step: TypeAlias = Callable[[Any, Any, int, Headers], _Result]


def start_value(node: Aggregate | PartialAggregate) -> Callable[[], Any]:
    """Return the initializer of an aggregation; a reduction starts with None."""
    return node.initializer or (lambda: None)


def aggregate(node: Aggregate, wiring: Wiring) -> Forward:
    """Fold all records of a key into one value."""
    step, forward = _step(node, wiring.context, wiring.failed), wiring.forward

    def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        done = step(key, value, timestamp, headers)
        if done is not None:
            new, old, latest, time = done
            forward(key, make_change((new, old, latest)), time, headers)

    return process


def aggregate_blocks(
    node: Aggregate, context: TaskContext, each: Forward, forward: ForwardBlock, failed: Failed
) -> ForwardBlock:
    """Fold the records of a block; forward tuples that begin like a `Change`.

    After a mutable result the remaining records go through ``each``, one by one: a result must be
    written before the next call of the aggregator can change it in place.
    """
    step = _step(node, context, failed)
    store = context.store(node.store)
    prefetch = store.prefetcher() if isinstance(store, KeyValueStore) else None

    def process(block: Block) -> None:
        if prefetch is not None:
            prefetch(block.keys)
        done: list[Any] = []
        append = done.append
        records = block.records()
        for context.offset, timestamp, key, value, headers in records:
            result = step(key, value, timestamp, headers)
            append(result)
            if result is not None and type(result[0]) not in IMMUTABLE_TYPES:
                break
        if len(done) < len(block.offsets) or None in done:
            block, done = block.select(done), list(filter(None, done))
        forward(block._replace(timestamps=[one[3] for one in done], values=done))
        for context.offset, timestamp, key, value, headers in records:
            each(key, value, timestamp, headers)

    return process


def _step(node: Aggregate, context: TaskContext, failed: Failed) -> _Step:
    """Return the function that folds one record into its key's value."""
    store = context.store(node.store)
    if not isinstance(store, KeyValueStore):
        return _versioned_step(node, context, store, failed)
    entry_of, note, set_entry = store.by_identity()
    identity_of, text = store.keys.identity, store.keys.text
    check, initial, fold = store.values.check, start_value(node), node.aggregator
    name, drop = node.name, context.drop

    def step(key: Any, value: Any, timestamp: int, headers: Headers) -> _Result:
        if key is None or value is None:
            drop(name)
            return None
        try:
            identity = key if type(key) is text and key.isascii() else identity_of(key)
            entry = entry_of(identity)
            if entry is None:
                old = None
                new = fold(key, value, initial())
            else:
                old, time = entry
                new = fold(key, value, old)
                if time > timestamp:
                    timestamp = time
            if type(new) is not int:
                check(new)
        except Exception as error:  # noqa: BLE001 the handler decides about any error
            failed(error, key, value, timestamp, headers)
            return None
        if new is None:
            store.delete(key)
        else:
            note(identity, entry)
            set_entry(identity, (new, timestamp))
        return new, old, True, timestamp

    return step


def _versioned_step(
    node: Aggregate, context: TaskContext, store: VersionedStore, failed: Failed
) -> _Step:
    """Return the function that folds one record into the latest version of its key's value."""
    initial, fold = start_value(node), node.aggregator

    def step(key: Any, value: Any, timestamp: int, headers: Headers) -> _Result:
        if key is None or value is None:
            context.drop(node.name)
            return None
        try:
            old, time = store.entry(key) or (None, timestamp)
            new = fold(key, value, initial() if old is None else old)
            time = max(time, timestamp)
            latest = store.put(key, new, time)
        except Exception as error:  # noqa: BLE001 the handler decides about any error
            failed(error, key, value, timestamp, headers)
            return None
        return None if latest is None else (new, old, latest, time)

    return step


def partial_aggregate(node: PartialAggregate, wiring: Wiring) -> Forward:
    """Fold the records of each key until the next commit, then forward one partial result per key.

    A result has the highest timestamp of its records; results are ordered by their first records.
    """
    held: dict[Any, tuple[Any, Any, int, Headers]] = {}
    failed, identity_of = wiring.failed, Keys(node.key_serde).identity
    initial, fold = start_value(node), node.aggregator
    name, drop = node.name, wiring.context.drop

    def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None or value is None:
            return drop(name)
        try:
            identity = identity_of(key)
            before = held.get(identity)
            new = fold(key, value, initial() if before is None else before[1])
        except Exception as error:  # noqa: BLE001 the handler decides about any error
            return failed(error, key, value, timestamp, headers)
        if before is not None and before[2] > timestamp:
            timestamp = before[2]
        held[identity] = key, new, timestamp, headers
        return None

    _flush_on_commit(held, wiring)
    return process


def _flush_on_commit(held: dict[Any, Any], wiring: Wiring) -> None:
    """Forward the records held by key identity at each commit."""

    def flush() -> None:
        records = list(held.values())
        held.clear()
        for key, value, timestamp, headers in records:
            wiring.forward(key, value, timestamp, headers)

    wiring.context.flushes.append(flush)


def cached(node: Aggregate, wiring: Wiring) -> Forward:
    """Hold updates until the next commit, then forward the last one of each key."""
    held: dict[Any, tuple[Any, Change, int, Headers]] = {}
    keys = wiring.context.store(node.store).keys
    identity_of = keys.identity if node.window is None else keys.windowed_identity

    def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        identity = identity_of(key)
        before = held.pop(identity, None)
        old = value.old if before is None else before[1].old
        if value.new is not None or old is not None:
            held[identity] = (key, Change(value.new, old, value.latest), timestamp, headers)

    _flush_on_commit(held, wiring)
    return process
