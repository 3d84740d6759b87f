"""Aggregations of streams: over all time, and over time windows.

Each keeps the time it has seen itself; a record without a key neither counts nor moves it.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

from thulawa.core.records import Change, Headers, Windowed, make_change
from thulawa.runtime.blocks import IMMUTABLE_TYPES, Block, ForwardBlock
from thulawa.runtime.context import Failed, Forward, StreamClock, TaskContext
from thulawa.state.key_identity import Keys
from thulawa.state.key_value_store import KeyValueStore
from thulawa.state.versioned_store import VersionedStore
from thulawa.state.window_store import WindowStore
from thulawa.topology.nodes import Aggregate, PartialAggregate
from thulawa.topology.windows import TimeWindows

__all__ = [
    "aggregate",
    "aggregate_blocks",
    "cached",
    "partial_aggregate",
    "start_value",
    "windowed_aggregate",
]

Folder = Callable[[Any, Any, Any], Any]


def start_value(node: Aggregate | PartialAggregate) -> Callable[[], Any]:
    """Return the initializer; a reduction begins with nothing."""
    return node.initializer or (lambda: None)


# key, value, timestamp, headers -> new value, old value, is the latest, its timestamp; None: none
Step: TypeAlias = Callable[[Any, Any, int, Headers], tuple[Any, Any, bool, int] | None]


def aggregate(node: Aggregate, context: TaskContext, forward: Forward, failed: Failed) -> Forward:
    """Fold all records of a key into one value."""
    step = _step(node, context, failed)

    def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        done = step(key, value, timestamp, headers)
        if done is not None:
            new, old, latest, time = done
            forward(key, make_change((new, old, latest)), time, headers)

    return process


def aggregate_blocks(
    node: Aggregate, context: TaskContext, each: Forward, forward: ForwardBlock, failed: Failed
) -> ForwardBlock:
    """Fold the records of a block; send on what a table's change begins with, and more.

    Once a result may be changed in place, the records after it go through ``each``: a result must
    have been written before the next one is made of it.
    """
    step = _step(node, context, failed)

    def process(block: Block) -> None:
        done: list[Any] = []
        take = done.append
        records = block.records()
        for context.offset, timestamp, key, value, headers in records:
            result = step(key, value, timestamp, headers)
            take(result)
            if result is not None and type(result[0]) not in IMMUTABLE_TYPES:
                break
        if len(done) < len(block.offsets) or None in done:
            block, done = block.select(done), list(filter(None, done))
        forward(block._replace(timestamps=[one[3] for one in done], values=done))
        for context.offset, timestamp, key, value, headers in records:
            each(key, value, timestamp, headers)

    return process


def _step(node: Aggregate, context: TaskContext, failed: Failed) -> Step:
    """Make what folds one record into its key's value."""
    store = context.store(node.store)
    if not isinstance(store, KeyValueStore):
        return _step_of_versions(node, context, store, failed)
    entry_of, note, set_entry = store.by_identity()
    identity_of, text = store.keys.identity, store.keys.text
    check = store.values.check
    initial = start_value(node)
    fold = node.aggregator
    name, drop = node.name, context.drop

    def step(
        key: Any, value: Any, timestamp: int, headers: Headers
    ) -> tuple[Any, Any, bool, int] | None:
        if key is None or value is None:
            drop(name)
            return None
        try:
            place = key if type(key) is text and key.isascii() else identity_of(key)
            entry = entry_of(place)
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
            note(place, entry)
            set_entry(place, (new, timestamp))
        return new, old, True, timestamp

    return step


def _step_of_versions(
    node: Aggregate, context: TaskContext, store: VersionedStore, failed: Failed
) -> Step:
    """Make what folds one record into its key's value where older values are kept too."""
    initial, fold = start_value(node), node.aggregator

    def step(
        key: Any, value: Any, timestamp: int, headers: Headers
    ) -> tuple[Any, Any, bool, int] | None:
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


def partial_aggregate(
    node: PartialAggregate, context: TaskContext, forward: Forward, failed: Failed
) -> Forward:
    """Fold the records of a key until the next commit; send what they came to on then.

    A result has the highest timestamp of its records, and comes where the first of them came.
    """
    held: dict[Any, tuple[Any, Any, int, Headers]] = {}
    identity_of = Keys(node.key_serde).identity
    initial = start_value(node)
    fold = node.aggregator
    name, drop = node.name, context.drop

    def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None or value is None:
            return drop(name)
        try:
            place = identity_of(key)
            before = held.get(place)
            new = fold(key, value, initial() if before is None else before[1])
        except Exception as error:  # noqa: BLE001 the handler decides about any error
            return failed(error, key, value, timestamp, headers)
        if before is not None and before[2] > timestamp:
            timestamp = before[2]
        held[place] = key, new, timestamp, headers
        return None

    def flush() -> None:
        results = list(held.values())
        held.clear()
        for key, value, timestamp, headers in results:
            forward(key, value, timestamp, headers)

    context.flushes.append(flush)
    return process


def windowed_aggregate(
    node: Aggregate, context: TaskContext, forward: Forward, failed: Failed
) -> Forward:
    """Fold the records of a key within each time window they fall into.

    A window takes records while its end + grace is beyond the time seen; windows are tested
    one by one, so that a late record may still count in its newer ones.
    """
    windows = node.window
    assert isinstance(windows, TimeWindows)
    store: WindowStore = context.store(node.store)
    clock = context.clock(node.clock)
    initial = start_value(node)
    fold = node.aggregator
    windows_for = windows.windows_for
    grace = windows.grace
    on_update = node.emit == "update"
    emit_closed = closed_windows(store, clock, context, forward, span=windows.size)

    def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None:
            return context.drop(node.name)
        if timestamp > clock.time:
            clock.time = timestamp
        close_time = clock.time - grace
        for window in windows_for(timestamp):
            if window.end <= close_time:
                context.drop(node.name, "late")
                continue
            try:
                old, time = store.fetch(key, window.start) or (None, timestamp)
                time = max(time, timestamp)
                new = fold(key, value, initial() if old is None else old)
                store.put(key, new, window.start, time)
            except Exception as error:  # noqa: BLE001 the handler decides about any error
                failed(error, key, value, timestamp, headers)
                continue
            if on_update:
                forward(Windowed(key, window), Change(new, old), time, headers)
        if not on_update:
            emit_closed(close_time, headers)
        return None

    return process


def closed_windows(
    store: WindowStore,
    clock: StreamClock,
    context: TaskContext,
    forward: Forward,
    *,
    span: int,
    keep: int = 0,
) -> Callable[[int, Headers], None]:
    """Make the function that emits the windows that have closed since it last did.

    The store keeps windows until they have left here, however far time jumps. ``span`` is what
    a window's start and its closing are apart, ``keep`` for how long a window is still needed
    after it has left.
    """

    def emit(close_time: int, headers: Headers) -> None:
        latest = close_time - span
        if close_time <= clock.emitted or latest < 0:
            return
        earliest = clock.emitted - span + 1 if clock.emitted >= 0 else 0
        with context.about(None):
            for windowed, (value, timestamp) in store.starting(max(0, earliest), latest):
                forward(windowed, Change(value, None), timestamp, headers)
        store.expire(latest - keep)
        clock.emitted = close_time

    return emit


def cached(node: Aggregate, context: TaskContext, forward: Forward) -> Forward:
    """Hold back updates until the next commit, and send the last one of each key then."""
    held: dict[Any, tuple[Any, Change, int, Headers]] = {}
    keys: Keys = context.store(node.store).keys
    place_of = keys.identity if node.window is None else keys.windowed_identity

    def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        place = place_of(key)
        before = held.pop(place, None)
        old = value.old if before is None else before[1].old
        held[place] = (key, Change(value.new, old, value.latest), timestamp, headers)

    def flush() -> None:
        updates = list(held.values())
        held.clear()
        for key, change, timestamp, headers in updates:
            if change.new is not None or change.old is not None:
                forward(key, change, timestamp, headers)

    context.flushes.append(flush)
    return process
