"""Which records have one key, and the order of a key's queue."""

from collections.abc import Hashable
from dataclasses import dataclass
from decimal import Decimal
from math import nan
from typing import Any

import pytest

from thulawa.engine.options import Order
from thulawa.engine.queues import KeyQueue, KeyRule
from thulawa.engine.work_items import WorkItem
from thulawa.errors import (
    BadKey,
    BadLane,
)


class RefusesToHash:
    def __hash__(self) -> int:
        raise RuntimeError("no hash today")


class EqualsNothing:
    """A value like pandas' NA, whose comparison has no truth value."""

    __hash__ = object.__hash__

    def __ne__(self, _: object) -> Any:
        return self

    def __bool__(self) -> bool:
        raise TypeError("the truth of it is ambiguous")


@dataclass(frozen=True)
class Place:
    country: str
    city: str


def key_of(key: Any, order: Order = "key", unkeyed: Any = "ordered", lane: int = 0) -> Hashable:
    return KeyRule(order, unkeyed, 2)(WorkItem(7, key, lane=lane))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"user-1", bytes(bytearray(b"user-1"))),
        ("user-1", b"user-1".decode()),
        (0.0, -0.0),
        (("ch", ("bern", 1)), ("ch", ("bern", 1))),
        (Place("ch", "bern"), Place("ch", "bern")),
        (1, 1.0),
    ],
)
def test_equal_keys_are_one_key(one: Hashable, other: Hashable) -> None:
    assert key_of(one) == key_of(other)
    assert hash(key_of(one)) == hash(key_of(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [(b"a", "a"), (None, "<unkeyed>"), (("a", "b"), "ab"), ("", None), (b"", None)],
)
def test_different_keys_are_two_keys(one: Hashable, other: Hashable) -> None:
    assert key_of(one) != key_of(other)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ([1], "key of type list cannot be hashed"),
        (("a", [1]), "key of type tuple cannot be hashed"),
        (bytearray(b"a"), "key of type bytearray cannot be hashed"),
        (RefusesToHash(), "key of type RefusesToHash cannot be hashed"),
        (Decimal("sNaN"), "cannot be hashed"),
        (nan, "NaN"),
        (("a", nan), "NaN"),
        (("a", ("b", nan)), "NaN"),
        (Decimal("NaN"), "NaN"),
        (EqualsNothing(), "key of type EqualsNothing cannot be compared"),
    ],
)
def test_a_key_that_cannot_be_hashed_or_compared_is_rejected(key: Any, reason: str) -> None:
    with pytest.raises(BadKey, match=reason) as refusal:
        key_of(key)
    assert refusal.value.offset == 7


@pytest.mark.parametrize("order", ["partition", "none"])
def test_without_key_order_any_key_is_accepted(order: Order) -> None:
    for key in ([1], nan, None):
        key_of(key, order)


@pytest.mark.parametrize("lane", [-1, 2, 99])
@pytest.mark.parametrize("order", ["key", "partition", "none", "emit"])
def test_a_lane_that_does_not_exist_is_rejected(order: Order, lane: int) -> None:
    with pytest.raises(BadLane, match=f"there is no lane {lane}"):
        key_of("a", order, lane=lane)


def test_unkeyed_records_share_one_queue_or_have_one_each() -> None:
    assert key_of(None) == key_of(None)
    assert key_of(None, unkeyed="parallel") != key_of(None, unkeyed="parallel")


def test_the_contract_decides_what_a_queue_is() -> None:
    assert key_of("a", "partition") == key_of("b", "partition") == key_of(None, "partition")
    assert key_of("a", "none") != key_of("a", "none")
    assert key_of("a", "emit") != key_of("a", "emit")


def filled(count: int) -> KeyQueue:
    queue = KeyQueue("a", WorkItem(0, "a", size=1))
    for offset in range(1, count):
        queue.append(WorkItem(offset, "a", size=1))
    return queue


def offsets(queue: KeyQueue) -> list[int]:
    return [record.offset for record in queue.records()]


def test_records_are_popped_in_the_order_they_were_appended() -> None:
    queue = filled(4)
    assert len(queue) == queue.waiting() == 4
    assert [queue.pop().record.offset for _ in range(4)] == [0, 1, 2, 3]
    assert queue.next_record() is None
    assert len(queue) == 0


def test_tickets_put_back_precede_all_others_and_keep_their_order() -> None:
    queue = filled(5)
    first, second, third = (queue.pop() for _ in range(3))
    queue.put_back([third])
    queue.put_back([first, second])
    assert offsets(queue) == [0, 1, 2, 3, 4]
    assert queue.waiting() == 2
    assert queue.pop() is first, "the ticket, with what its attempts have left behind"


def test_a_record_appended_to_an_empty_queue_becomes_its_head() -> None:
    queue = filled(1)
    queue.pop()
    queue.append(WorkItem(8, "a"))
    assert offsets(queue) == [8]


def test_only_the_parked_part_of_the_retries_counts_as_parked_bytes() -> None:
    queue = filled(3)
    queue.put_back([queue.pop(), queue.pop()])
    queue.parked = 1
    assert queue.parked_bytes() == 1
