"""Stores against plain models, and over a backing that was filled before."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thulawa.core.records import Window
from thulawa.state.backing import Backing, sort_key
from thulawa.state.specs import StoreSpec
from thulawa.state.stores import KeyValueStore, TimeOrderedBuffer, VersionedStore
from thulawa.state.window_stores import JoinStore, SessionStore, WindowStore

KEYS = st.sampled_from(["a", "b", "c"])
VALUES = st.one_of(st.none(), st.integers(0, 9))
TIMES = st.integers(0, 60)


@given(st.lists(st.tuples(KEYS, VALUES)))
def test_a_key_value_store_is_a_dict_in_key_order(puts: list[tuple[str, Any]]) -> None:
    store, model = KeyValueStore("s", {}), {}
    for key, value in puts:
        list(store.all())  # the sorted view must not go stale
        store.put(key, value)
        model[key] = value
        if value is None:
            del model[key]
        assert list(store.all()) == sorted(model.items())
        assert list(store.range("b", None)) == [e for e in sorted(model.items()) if e[0] >= "b"]
    assert len(store) == len(model)


def test_put_if_absent_and_delete_return_the_previous_value() -> None:
    store = KeyValueStore("s", {})
    assert store.put_if_absent("a", 1) is None
    assert store.put_if_absent("a", 2) == 1
    assert store.delete("a") == 1
    assert store.delete("a") is None


@given(st.lists(st.tuples(KEYS, VALUES, TIMES)), st.integers(1, 30))
def test_a_window_store_holds_windows_within_its_retention(
    puts: list[tuple[str, Any, int]], retention: int
) -> None:
    backing: dict[Any, Any] = {}
    store = WindowStore("s", backing, size=5, retention=retention)
    model: dict[tuple[str, int], Any] = {}
    newest = -1
    for key, value, start in puts:
        store.put(key, value, start, start)
        newest = max(newest, start)
        if start > newest - retention:
            model[key, start] = value
        live = {
            place: value
            for place, value in model.items()
            if value is not None and place[1] > newest - retention
        }
        assert {(w.key, w.window.start): v for w, v in store.all()} == live
        found = store.range(key, 10, 40)
        starts = sorted(s for k, s in live if k == key and 10 <= s <= 40)
        assert [window.start for window, _ in found] == starts
        assert len(backing) == len(live)


@given(st.lists(st.tuples(KEYS, st.integers(0, 9), TIMES)))
def test_a_join_store_returns_every_record_by_time_then_arrival(
    puts: list[tuple[str, int, int]],
) -> None:
    store = JoinStore("s", {}, retention=1000)
    for key, value, time in puts:
        store.put(key, value, time)
    for key in "abc":
        expected = sorted(
            [(time, value) for k, value, time in puts if k == key], key=lambda entry: entry[0]
        )
        assert list(store.fetch(key, 0, 60)) == expected


@given(st.lists(st.tuples(KEYS, VALUES, TIMES)), KEYS, TIMES)
def test_a_versioned_store_returns_the_value_as_of_a_time(
    puts: list[tuple[str, Any, int]], key: str, asked: int
) -> None:
    store = VersionedStore("s", {}, retention=1000)
    model: dict[tuple[str, int], Any] = {}
    for put_key, value, time in puts:
        later = any(k == put_key and t > time for k, t in model)
        assert store.put(put_key, value, time) is not later
        model[put_key, time] = value
    versions = sorted((t, v) for (k, t), v in model.items() if k == key and t <= asked)
    expected = None if not versions or versions[-1][1] is None else versions[-1][::-1]
    assert store.as_of(key, asked) == expected


def test_a_version_older_than_the_history_is_rejected() -> None:
    store = VersionedStore("s", {}, retention=10)
    assert store.put("a", "new", 100) is True
    assert store.put("a", "old", 90) is False
    assert store.put("a", "too old", 89) is None
    assert store.as_of("a", 95) == ("old", 90)
    store.put("a", "newer", 150)
    assert store.as_of("a", 120) is None  # before the history


@given(st.lists(st.tuples(TIMES, KEYS, st.integers())))
def test_a_buffer_returns_the_oldest_first_and_a_key_keeps_its_time(
    puts: list[tuple[int, str, int]],
) -> None:
    buffer = TimeOrderedBuffer("b", {})
    model: dict[str, tuple[int, int]] = {}
    for time, key, value in puts:
        buffer.put(time, key, value)
        model[key] = (model[key][0] if key in model else time, value)
    expected = sorted(model.items(), key=lambda entry: (entry[1][0], entry[0]))
    got = [buffer.pop_first() for _ in range(len(buffer))]
    assert got == [(key, value) for key, (_, value) in expected]
    assert buffer.earliest() is None


def test_sessions_are_found_by_overlap_and_expire_by_their_end() -> None:
    store = SessionStore("s", {}, retention=20)
    store.put("a", Window(0, 5), 1)
    store.put("a", Window(10, 12), 2)
    assert [w for w, _ in store.overlapping("a", 5, 9)] == [Window(0, 5)]
    assert [w for w, _ in store.overlapping("a", 6, 10)] == [Window(10, 12)]
    store.put("b", Window(30, 30), 3)
    assert [(w.key, tuple(w.window)) for w, _ in store.all()] == [("a", (10, 12)), ("b", (30, 30))]


SPECS = [
    StoreSpec(name="s"),
    StoreSpec(name="s", kind="window", size=5, retention=100),
    StoreSpec(name="s", kind="session", retention=100),
    StoreSpec(name="s", kind="versioned", retention=100),
    StoreSpec(name="s", kind="join", retention=100),
    StoreSpec(name="s", kind="buffer"),
]


def fill(store: Any, number: int) -> None:
    key = f"k{number % 3}"
    match store:
        case KeyValueStore() | VersionedStore() | JoinStore():
            store.put(key, number, number)
        case WindowStore():
            store.put(key, number, number, number)
        case SessionStore():
            store.put(key, Window(number, number), number)
        case TimeOrderedBuffer():
            store.put(number, key, number)


def content(store: Any) -> list[Any]:
    match store:
        case JoinStore():
            return [list(store.fetch(f"k{n}", 0, 100)) for n in range(3)]
        case TimeOrderedBuffer():
            return list(store)
        case _:
            return list(store.all())


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.kind)
def test_a_store_opened_over_a_filled_backing_is_the_store_that_filled_it(spec: StoreSpec) -> None:
    backing: Any = {}
    first = spec.open(backing)
    for number in range(10):
        fill(first, number)
    again = spec.open(dict(backing))
    assert content(again) == content(first) != []
    for number in range(10, 15):
        fill(first, number)
        fill(again, number)
    assert content(again) == content(first)


def test_a_dict_is_a_backing() -> None:
    backing: Backing = {}
    backing["a"] = 1
    assert (backing.get("a"), backing.pop("a", None), len(backing)) == (1, 1, 0)


@settings(max_examples=50)
@given(st.lists(st.one_of(st.none(), st.integers(), st.text(), st.binary(), st.tuples(st.text()))))
def test_keys_of_any_types_can_be_sorted(keys: list[Any]) -> None:
    assert len(sorted(keys, key=sort_key)) == len(keys)
