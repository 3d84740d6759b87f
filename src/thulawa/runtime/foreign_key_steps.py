"""Foreign-key joins, as messages between the left row's partition and the right row's.

A left row subscribes at its foreign key. The right side stores the subscription and answers with
its row, immediately and whenever the row changes. The left side accepts an answer only if its row
still has the value that subscribed, by a fingerprint of the value.

Several updates of a left row may be in flight, and answers to all but the last are dropped. Every
version is therefore answered, even without a right row, because it may have to retract the result
of an earlier version. The left side stores which version was answered last and whether it has a
result, so that no tombstone is emitted for a row that never had one.

When a row of a left join changes its foreign key, the old key answers too, without a right row. As
in Kafka this emits a result, but only until the new foreign key has answered.
"""

from hashlib import blake2b
from typing import Any, NamedTuple

from thulawa.core.records import Change, Headers
from thulawa.runtime.context import Forward, Wiring
from thulawa.state.backing import sort_key
from thulawa.state.codec import register
from thulawa.state.key_identity import Keys
from thulawa.topology.nodes import ForeignKeyStep

_DELETE_QUIETLY = "delete"
_DELETE_AND_ANSWER = "delete and answer"
_ANSWER = "answer"


class Subscription(NamedTuple):
    """The message from a left row to the right side; ``primary_key`` is a key identity."""

    primary_key: Any
    fingerprint: str | None
    instruction: str
    partition: int


class Answer(NamedTuple):
    """The message from the right side to a left row; ``provisional``: another answer follows."""

    fingerprint: str | None
    row: Any
    partition: int
    provisional: bool = False


register(Subscription, 4)
register(Answer, 5)


def foreign_key_step(node: ForeignKeyStep, wiring: Wiring) -> Forward:
    """Return the function of one step."""
    return _STEPS[node.step](node, wiring)


def _fingerprint(value: Any) -> str | None:
    return None if value is None else blake2b(repr(value).encode(), digest_size=16).hexdigest()


def _subscribe(node: ForeignKeyStep, wiring: Wiring) -> Forward:
    context, forward, failed = wiring.context, wiring.forward, wiring.failed
    foreign_key = node.foreign_key
    assert foreign_key is not None
    versioned = context.views.is_versioned(node.table)
    identity_of = Keys(node.key_serde).identity
    foreign_identity_of = Keys(node.foreign_serde).identity

    def process(key: Any, change: Change, timestamp: int, headers: Headers) -> None:
        if versioned and not change.latest:
            return context.drop(node.name)
        try:
            old = None if change.old is None else foreign_key(change.old)
            new = None if change.new is None else foreign_key(change.new)
            same = foreign_identity_of(old) == foreign_identity_of(new)
            primary_key = identity_of(key)
        except Exception as error:  # noqa: BLE001 the handler decides about any error
            return failed(error, key, change.new, timestamp, headers)
        mark = _fingerprint(change.new)
        for target, instruction in _instructions(change, old, new, same=same, left=node.left):
            message = Subscription(primary_key, mark, instruction, context.partition)
            forward(target, message, timestamp, headers)
        return None

    return process


def _instructions(
    change: Change, old: Any, new: Any, *, same: bool, left: bool
) -> list[tuple[Any, str]]:
    """Return the messages to the old and the new foreign key, which may be the ``same``."""
    if change.new is None and change.old is None:
        return []
    if new is None and old is not None and (change.new is None or not left):
        return [(old, _DELETE_AND_ANSWER)]
    unsubscribe = _DELETE_AND_ANSWER if left else _DELETE_QUIETLY
    first = [(old, unsubscribe)] if old is not None and not same else []
    return [*first, (new, _ANSWER)]


def _receive(node: ForeignKeyStep, wiring: Wiring) -> Forward:
    """Return the function that stores subscribers: (left key, (fingerprint, partition))."""
    context, forward = wiring.context, wiring.forward
    store = context.store(node.store)

    def process(key: Any, value: Subscription, timestamp: int, headers: Headers) -> None:
        if key is None and value.instruction != _ANSWER:
            return context.drop(node.name)
        if key is not None:
            subscribers = dict(store.get(key) or ())
            if value.instruction in (_DELETE_QUIETLY, _DELETE_AND_ANSWER):
                subscribers.pop(value.primary_key, None)
            else:
                subscribers[value.primary_key] = (value.fingerprint, value.partition)
            store.put(key, tuple(subscribers.items()) or None, timestamp)
        return forward(key, value, timestamp, headers)

    return process


def _answer(node: ForeignKeyStep, wiring: Wiring) -> Forward:
    forward, rows = wiring.forward, wiring.context.views.latest(node.table)
    key_of = Keys(node.key_serde).key

    def process(key: Any, value: Subscription, timestamp: int, headers: Headers) -> None:
        entry = None if key is None else rows(key)
        if value.instruction == _DELETE_QUIETLY:
            return
        time = timestamp if entry is None else max(timestamp, entry[1])
        deleted, mark = value.instruction == _DELETE_AND_ANSWER, value.fingerprint
        row = None if entry is None or deleted else entry[0]
        provisional = deleted and node.left and mark is not None
        answer = Answer(mark, row, value.partition, provisional)
        forward(key_of(value.primary_key), answer, time, headers)

    return process


def _change(node: ForeignKeyStep, wiring: Wiring) -> Forward:
    context, forward = wiring.context, wiring.forward
    store, key_of = context.store(node.store), Keys(node.key_serde).key
    versioned = context.views.is_versioned(node.table)

    def process(key: Any, change: Change, timestamp: int, headers: Headers) -> None:
        if key is None or (versioned and not change.latest):
            return context.drop(node.name)
        subscribers = sorted(store.get(key) or (), key=lambda entry: sort_key(entry[0]))
        for primary_key, (mark, partition) in subscribers:
            forward(key_of(primary_key), Answer(mark, change.new, partition), timestamp, headers)
        return None

    return process


def _resolve(node: ForeignKeyStep, wiring: Wiring) -> Forward:
    context, forward, failed = wiring.context, wiring.forward, wiring.failed
    rows = context.views.latest(node.table)
    answered = context.store(node.store)  # (fingerprint of a version, whether it has a result)
    joiner = node.joiner
    assert joiner is not None

    def process(key: Any, value: Answer, timestamp: int, headers: Headers) -> None:
        entry = rows(key)
        mine = None if entry is None else entry[0]
        before = answered.get(key) or (None, False)
        if _fingerprint(mine) != value.fingerprint:
            return None
        if value.provisional and before[0] == value.fingerprint:
            return None
        try:
            nothing = value.row is None and (not node.left or mine is None)
            result = None if nothing else joiner(mine, value.row)
        except Exception as error:  # noqa: BLE001 the handler decides about any error
            return failed(error, key, value, timestamp, headers)
        if mine is None:
            answered.put(key, None, timestamp)
        else:
            version = None if value.provisional else value.fingerprint
            answered.put(key, (version, result is not None), timestamp)
        if nothing and not before[1]:
            return None
        return forward(key, result, timestamp, headers)

    return process


_STEPS = {
    "subscribe": _subscribe,
    "receive": _receive,
    "answer": _answer,
    "change": _change,
    "resolve": _resolve,
}
