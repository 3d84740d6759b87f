"""Entries in a local database behind a cache, against a dict."""

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thulawa.errors import StateError
from thulawa.state.codec import ColumnCodec
from thulawa.state.rocksdb import (
    CachedEntries,
    DatabaseMemory,
    LocalDatabase,
    decode_key,
    encode_key,
)

_identities = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.binary(),
    st.integers(),
    st.tuples(st.text(st.characters(exclude_categories=["Cs"])), st.integers(-(2**63), 2**63 - 1)),
    st.none(),
)


@given(_identities)
def test_a_key_is_decoded_as_it_was(identity: Any) -> None:
    assert decode_key(encode_key(identity)) == identity


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1)),
    st.lists(st.text(st.characters(max_codepoint=0xD7FF))),
)
def test_numbers_and_text_keep_their_order(numbers: list[int], texts: list[str]) -> None:
    assert sorted(numbers, key=encode_key) == sorted(numbers)
    assert sorted(texts, key=encode_key) == sorted(texts)


class Machine:
    """Two stores of one database and a dict for each, changed alike."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.folder = folder / str(seed)
        self.memory = DatabaseMemory(2**20)
        self.models: list[dict[Any, Any]] = [{}, {}]
        self.changelogs: list[dict[Any, bytes]] = [{}, {}]
        self.open()

    def open(self) -> None:
        self.database = LocalDatabase(self.folder, self.memory)
        self.stores = [CachedEntries(self.database, n, ColumnCodec()) for n in (1, 2)]
        for store in self.stores:
            store.open()

    def key(self) -> Any:
        number = self.random.randrange(30)
        return self.random.choice(
            [f"k{number}", number, ("k", number), f"é{number}", b"%d" % number]
        )

    def step(self) -> None:
        at = self.random.randrange(2)
        store, model, key = self.stores[at], self.models[at], self.key()
        match self.random.randrange(12):
            case 0 | 1 | 2 | 3:
                value = self.random.choice([1, "x", (self.random.random(), 5), [1, {"a": None}]])
                store[key] = model[key] = value
            case 4 | 5:
                assert store.pop(key, None) == model.pop(key, None)
            case 6:
                assert store.get(key) == model.get(key)
                assert (key in store) == (key in model)
            case 7:
                keys = [self.key() for _ in range(10)]
                store.prefetch(keys)
                assert [store.get(one) for one in keys] == [model.get(one) for one in keys]
            case 8:
                store.evict(self.random.randrange(20))
            case 9:
                assert dict(store.items()) == model
                assert set(store.keys()) == set(store) == set(model)
                assert len(store) == len(model)
                assert bool(store) == bool(model)
            case 10:
                self.commit()
            case 11:
                self.write(reopen=self.random.random() < 0.3)

    def commit(self) -> None:
        for store, changelog in zip(self.stores, self.changelogs, strict=True):
            for key, data in store.take_changes():
                if data is None:
                    changelog.pop(key, None)
                else:
                    changelog[key] = data

    def write(self, *, reopen: bool) -> None:
        self.commit()
        for store in self.stores:
            self.database.write(list(store.start_write()))
            store.get(self.key())
            store.finish_write()
            assert store.unwritten == 0
        if reopen:
            self.database.close()
            self.open()

    def check(self) -> None:
        self.commit()
        for store, model, changelog in zip(self.stores, self.models, self.changelogs, strict=True):
            assert dict(store.items()) == model
            assert {key: store._codec.decode_one(data) for key, data in changelog.items()} == model


@pytest.mark.parametrize("seed", range(20))
def test_entries_are_those_of_a_dict_whatever_is_evicted_written_or_reopened(
    tmp_path: Path, seed: int
) -> None:
    machine = Machine(tmp_path, seed)
    for _ in range(600):
        machine.step()
    machine.check()


def test_changes_that_are_not_committed_are_not_evicted(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 0)
    store = machine.stores[0]
    for number in range(100):
        store[number] = number
    store.evict(100)
    assert store.held == 100
    machine.commit()
    store.evict(60)
    assert store.held == 40
    assert len(store) == 100  # those that are not written are found too


def test_a_database_that_another_process_has_open_is_an_error_with_what_to_do(
    tmp_path: Path,
) -> None:
    memory = DatabaseMemory(2**20)
    database = LocalDatabase(tmp_path / "db", memory)
    with pytest.raises(StateError, match=r"cannot be opened.*check the disk"):
        LocalDatabase(tmp_path / "db", memory)
    database.close()
