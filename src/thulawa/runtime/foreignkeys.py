"""Foreign-key joins, as messages between the left row's partition and the right row's.

A left row subscribes at the key it refers to; the right side keeps the subscription and answers
with its row, now and whenever the row changes. An answer counts only if the left row is still
the one that asked, which a fingerprint of its value tells.
"""

from hashlib import blake2b
from typing import Any, NamedTuple

from thulawa.core.records import Change, Headers
from thulawa.runtime.context import Failed, Forward, TaskContext
from thulawa.runtime.views import Views
from thulawa.state.backing import sort_key
from thulawa.state.codec import register
from thulawa.state.keys import Keys
from thulawa.topology.nodes import ForeignKeyStep

__all__ = ["Answer", "Subscription", "foreign_key_step"]

_DELETE_QUIETLY = "delete"
_DELETE_AND_ANSWER = "delete and answer"
_ANSWER_IF_FOUND = "answer if found"
_ANSWER = "answer"


class Subscription(NamedTuple):
    """What a left row tells the right side; its key is there by its identity."""

    primary_key: Any
    fingerprint: str | None
    instruction: str
    partition: int


class Answer(NamedTuple):
    """What the right side tells a left row."""

    fingerprint: str | None
    row: Any
    partition: int


register(Subscription, 4)
register(Answer, 5)


def foreign_key_step(
    node: ForeignKeyStep, context: TaskContext, views: Views, forward: Forward, failed: Failed
) -> Forward:
    """Make the function of one step."""
    match node.step:
        case "subscribe":
            return _subscribe(node, context, views, forward, failed)
        case "receive":
            return _receive(node, context, forward)
        case "answer":
            return _answer(node, views, forward)
        case "change":
            return _change(node, context, views, forward)
        case "resolve":
            return _resolve(node, views, forward, failed)


def _fingerprint(value: Any) -> str | None:
    return None if value is None else blake2b(repr(value).encode(), digest_size=16).hexdigest()


def _subscribe(
    node: ForeignKeyStep, context: TaskContext, views: Views, forward: Forward, failed: Failed
) -> Forward:
    foreign_key = node.foreign_key
    assert foreign_key is not None
    versioned = views.is_versioned(node.table)
    instruct = _left_instructions if node.left else _inner_instructions
    identity_of, foreign_identity_of = (
        Keys(node.key_serde).identity,
        Keys(node.foreign_serde).identity,
    )

    def process(key: Any, change: Change, timestamp: int, headers: Headers) -> None:
        if versioned and not change.latest:
            return context.drop()
        try:
            old = None if change.old is None else foreign_key(change.old)
            new = None if change.new is None else foreign_key(change.new)
            same = foreign_identity_of(old) == foreign_identity_of(new)
            primary_key = identity_of(key)
        except Exception as error:  # noqa: BLE001 the handler decides about any error
            return failed(error, key, change.new, timestamp, headers)
        mark = _fingerprint(change.new)
        for target, instruction in instruct(change, old, new, same=same):
            message = Subscription(primary_key, mark, instruction, context.partition)
            forward(target, message, timestamp, headers)
        return None

    return process


def _left_instructions(change: Change, old: Any, new: Any, *, same: bool) -> list[tuple[Any, str]]:
    if change.new is None:
        if change.old is None:
            return []
        return [(None, _ANSWER)] if old is None else [(old, _DELETE_AND_ANSWER)]
    first = [(old, _DELETE_AND_ANSWER)] if old is not None and not same else []
    return [*first, (new, _ANSWER)]


def _inner_instructions(_: Change, old: Any, new: Any, *, same: bool) -> list[tuple[Any, str]]:
    if old is None:
        return [] if new is None else [(new, _ANSWER_IF_FOUND)]
    if new is None:
        return [(old, _DELETE_AND_ANSWER)]
    if same:
        return [(new, _ANSWER_IF_FOUND)]
    return [(old, _DELETE_QUIETLY), (new, _ANSWER)]


def _receive(node: ForeignKeyStep, context: TaskContext, forward: Forward) -> Forward:
    """Make what keeps who has subscribed: (identity of the left key, (fingerprint, partition))."""
    store = context.store(node.store)

    def process(key: Any, value: Subscription, timestamp: int, headers: Headers) -> None:
        if key is None and value.instruction != _ANSWER:
            return context.drop()
        if key is not None:
            subscribers = dict(store.get(key) or ())
            if value.instruction in (_DELETE_QUIETLY, _DELETE_AND_ANSWER):
                subscribers.pop(value.primary_key, None)
            else:
                subscribers[value.primary_key] = (value.fingerprint, value.partition)
            store.put(key, tuple(subscribers.items()) or None, timestamp)
        return forward(key, value, timestamp, headers)

    return process


def _answer(node: ForeignKeyStep, views: Views, forward: Forward) -> Forward:
    rows = views.latest(node.table)
    key_of = Keys(node.key_serde).key

    def process(key: Any, value: Subscription, timestamp: int, headers: Headers) -> None:
        entry = None if key is None else rows(key)
        time = timestamp if entry is None else max(timestamp, entry[1])
        row = None if entry is None else entry[0]
        if value.instruction == _DELETE_AND_ANSWER:
            row = None
        elif value.instruction == _DELETE_QUIETLY or (
            value.instruction == _ANSWER_IF_FOUND and row is None
        ):
            return
        answer = Answer(value.fingerprint, row, value.partition)
        forward(key_of(value.primary_key), answer, time, headers)

    return process


def _change(node: ForeignKeyStep, context: TaskContext, views: Views, forward: Forward) -> Forward:
    store = context.store(node.store)
    key_of = Keys(node.key_serde).key
    versioned = views.is_versioned(node.table)

    def process(key: Any, change: Change, timestamp: int, headers: Headers) -> None:
        if key is None or (versioned and not change.latest):
            return context.drop()
        subscribers = sorted(store.get(key) or (), key=lambda entry: sort_key(entry[0]))
        for primary_key, (mark, partition) in subscribers:
            forward(key_of(primary_key), Answer(mark, change.new, partition), timestamp, headers)
        return None

    return process


def _resolve(node: ForeignKeyStep, views: Views, forward: Forward, failed: Failed) -> Forward:
    rows = views.latest(node.table)
    joiner = node.joiner
    assert joiner is not None

    def process(key: Any, value: Answer, timestamp: int, headers: Headers) -> None:
        entry = rows(key)
        mine = None if entry is None else entry[0]
        if _fingerprint(mine) != value.fingerprint:
            return None
        try:
            nothing = value.row is None and (not node.left or mine is None)
            result = None if nothing else joiner(mine, value.row)
        except Exception as error:  # noqa: BLE001 the handler decides about any error
            return failed(error, key, value, timestamp, headers)
        return forward(key, result, timestamp, headers)

    return process
