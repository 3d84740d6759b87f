"""Paged stores return what was committed, whatever fails and on whichever worker they run."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from thulawa.core.records import Change, Window, Windowed
from thulawa.errors import StateError
from thulawa.state import paged, pages
from thulawa.state.backing import setters
from thulawa.state.codec import ColumnCodec
from thulawa.state.paged import PagedStores, read_stores
from thulawa.state.specs import StoreSpec
from thulawa.testing import seeds


class Store(dict[str, bytes]):
    """Bytes by name; a copy is a transaction."""

    def put(self, name: str, data: bytes) -> None:
        self[name] = data

    def remove(self, name: str) -> None:
        del self[name]


SPECS = {name: StoreSpec(name=name) for name in ("counts", "names")}
ANY_KEYS: list[Any] = [
    *(f"k{n}" for n in range(100)),
    *((n, m) for n in range(30) for m in range(5)),
    *range(50),
    *map(float, range(50)),  # equal to the integers above, for a dict
    "never",
]


def entries(stores: PagedStores) -> dict[str, dict[Any, Any]]:
    return {name: dict(stores.backing(name)) for name in SPECS}


def check(stores: PagedStores, model: dict[str, dict[Any, Any]], draw: random.Random) -> None:
    """Compare all entries, their number, or a few: comparing all of them loads all shards."""
    match draw.randrange(8):
        case 0:
            assert entries(stores) == model
        case 1:
            assert {name: len(stores.backing(name)) for name in SPECS} == {
                name: len(part) for name, part in model.items()
            }
        case _:
            for name, part in model.items():
                for key in draw.sample(ANY_KEYS, 5):
                    assert stores.backing(name).get(key) == part.get(key)


def change(stores: PagedStores, model: dict[str, dict[Any, Any]], draw: random.Random) -> None:
    keys: list[Callable[[], Any]] = [
        lambda: f"k{draw.randrange(100)}",
        lambda: (draw.randrange(30), draw.randrange(5)),
        lambda: draw.choice([int, float])(draw.randrange(50)),
    ]
    for _ in range(draw.randrange(40)):
        name = draw.choice(list(SPECS))
        key = draw.choice(keys)()
        if draw.random() < 0.3:
            stores.backing(name).pop(key, None)
            model[name].pop(key, None)
            continue
        entry = model[name][key] = (draw.random(), draw.randrange(9))
        if draw.random() < 0.5:
            stores.backing(name)[key] = entry
        else:
            note, set_entry = setters(stores.backing(name))
            note(key, stores.backing(name).get(key))
            set_entry(key, entry)


@pytest.mark.parametrize("seed", seeds(60))
def test_failures_repetitions_and_other_workers_leave_no_trace(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    monkeypatch.setattr(paged, "PAGE_ENTRIES", draw.choice([5, 20, 1000]))
    monkeypatch.setattr(pages, "CHUNK_ENTRIES", draw.choice([7, 1000]))
    monkeypatch.setattr(pages, "_PART_ENTRIES", draw.choice([1, 3, 64]))
    monkeypatch.setattr(pages, "MAX_SHARDS", draw.choice([2, 4, 256]))
    monkeypatch.setattr(paged, "CATCH_UP", draw.choice([1, 3, 8]))
    committed = Store()
    model: dict[str, dict[Any, Any]] = {name: {} for name in SPECS}
    workers = [PagedStores(SPECS) for _ in range(3)]
    for batch in range(60):
        while True:
            place = draw.randrange(3)
            stores = workers[place]
            attempt = Store(committed)
            stores.open(attempt)
            check(stores, model, draw)
            assert stores.snapshot == ({"batch": batch - 1} if batch else None)
            wanted = {name: dict(part) for name, part in model.items()}
            change(stores, wanted, draw)
            if draw.random() < 0.15:
                continue  # fails before the flush
            stores.flush(attempt, {"batch": batch})
            if draw.random() < 0.15:
                continue  # fails after the flush, before the commit
            committed, model = attempt, wanted
            if draw.random() < 0.1:
                workers[draw.randrange(3)] = PagedStores(SPECS)  # a worker dies
            break


def filled(count: int, changed: int) -> Store:
    """Return the state of a store with so many keys, with deltas over its pages."""
    backend, stores = Store(), PagedStores(SPECS)
    for batch in range(30):
        stores.open(backend)
        numbers = range(batch, batch + changed) if batch else range(count)
        for number in numbers:
            stores.backing("counts")[f"key{number % count}"] = (number, batch)
        stores.flush(backend, {"batch": batch})
    return backend


def counts(backend: Store) -> dict[Any, Any]:
    return read_stores(backend, SPECS).backing("counts")


class Watched(Store):
    """Records the names that are read."""

    def __init__(self, backend: Store) -> None:
        super().__init__(backend)
        self.read: list[str] = []

    def get(self, name: str) -> bytes | None:  # type: ignore[override]
        self.read.append(name)
        return super().get(name)


def test_access_to_a_key_loads_its_shard_alone() -> None:
    backend = filled(100_000, 1_000)
    seen, stores = Watched(backend), PagedStores(SPECS)
    stores.open(seen)
    assert seen.read == ["meta"]
    assert stores.backing("counts").get("key99000") == (99_000, 0)
    pages_read = [name for name in seen.read if name.startswith("page")]
    assert 1 <= len(pages_read) <= 2
    assert dict.__len__(stores.backing("counts")) < 100_000 / 8
    assert len(stores.backing("counts")) == 100_000
    assert len([name for name in seen.read if name.startswith("page")]) == len(
        [name for name in backend if name.startswith("page/counts")]
    )
    assert len(set(seen.read)) == len(seen.read)  # nothing twice


def test_a_partly_loaded_store_is_written_like_any_other() -> None:
    backend = filled(50_000, 100)
    model = dict(counts(backend))
    for batch in range(40):
        stores = PagedStores(SPECS)  # each time on another worker
        stores.open(backend)
        entries_of = stores.backing("counts")
        for number in range(20):
            key = f"key{(batch * 7919 + number * 104_729) % 60_000}"
            entries_of[key] = model[key] = (batch, number)
        entries_of.pop(f"key{batch}")
        model.pop(f"key{batch}", None)
        stores.flush(backend, {})
    assert dict(counts(backend)) == model


def test_stores_that_iterate_over_all_keys_are_loaded_at_once() -> None:
    specs = {"counts": StoreSpec(name="counts", kind="window", size=1, retention=10**9)}
    backend, stores = Store(), PagedStores(specs)
    for batch in range(3):
        stores.open(backend)
        for number in range(10_000):
            stores.backing("counts")[f"key{number}", batch] = (number, batch)
        stores.flush(backend, {})
    again = PagedStores(specs)
    again.open(backend)
    assert dict.__len__(again.backing("counts")) == 30_000


def test_open_reports_once_that_the_last_shard_has_been_loaded() -> None:
    backend, stores = filled(50_000, 100), PagedStores(SPECS)
    stores.open(backend)
    stores.backing("counts")["key1"] = (0, 0)
    stores.flush(backend, {})
    assert stores.open(backend)
    assert len(stores.backing("counts")) == 50_000
    stores.flush(backend, {})
    assert not stores.open(backend)
    stores.flush(backend, {})
    assert stores.open(backend)


def test_the_same_worker_continues_without_reading_anything_again() -> None:
    backend, stores = Store(), PagedStores(SPECS)
    assert not stores.open(backend)
    stores.backing("counts")["a"] = 1
    stores.flush(backend, {})
    assert stores.open(Store(meta=backend["meta"]))


def test_the_bytes_written_follow_the_change_not_the_size_of_the_store() -> None:
    backend, stores = Store(), PagedStores(SPECS)
    stores.open(backend)
    for key in range(100_000):
        stores.backing("counts")[key] = key
    stores.flush(backend, {})
    sizes = []
    for batch in range(20):
        stores.open(backend)
        for key in range(100):
            stores.backing("counts")[key * 7 + batch] = batch
        before = Store(backend)
        stores.flush(backend, {})
        sizes.append(sum(len(data) for name, data in backend.items() if before.get(name) != data))
    page = max(len(data) for name, data in backend.items() if name.startswith("page"))
    assert max(sizes) < 2 * page + 5_000


def test_deltas_that_all_pages_include_are_removed() -> None:
    backend, stores = Store(), PagedStores(SPECS)
    for batch in range(100):
        stores.open(backend)
        for key in range(50):
            stores.backing("counts")[key] = batch
            stores.backing("names")[key] = str(batch)
        stores.flush(backend, {})
    assert len([name for name in backend if name.startswith("delta")]) <= 2 * paged.CATCH_UP


@pytest.mark.parametrize("damage", ["page/counts/0", "meta"])
def test_damaged_state_is_rejected(damage: str) -> None:
    backend, stores = Store(), PagedStores(SPECS)
    stores.open(backend)
    stores.backing("counts")["a"] = 1
    stores.flush(backend, {})
    backend[damage] = backend[damage][:-3] + b"xyz"
    with pytest.raises(StateError, match="damaged"):
        PagedStores(SPECS).open(backend)


def test_missing_parts_are_named() -> None:
    backend, stores = Store(), PagedStores(SPECS)
    stores.open(backend)
    stores.backing("counts")["a"] = 1
    stores.flush(backend, {})
    del backend["page/counts/0"]
    with pytest.raises(StateError, match="page/counts/0"):
        PagedStores(SPECS).open(backend)


@pytest.mark.parametrize(
    "values",
    [
        [],
        [None, True, 1, -1, 2**63, 2**100, 1.5, "é", b"\x00"],
        [(1, "a"), (2, None)],
        [(1, "a"), (2,)],
        [(), ()],
        [((1, 2), "x"), ((3, 4), "y")],
        [Windowed("k", Window(1, 2)), Windowed("l", Window(3, 4))],
        [Change(1, None), Change(None, 2, latest=False)],
        [[1, (2, [3])], {"a": {1: 2}, "b": {(1, 2): {3, 4}}}, frozenset("ab")],
        ["x" * 10_000, "y"],
    ],
    ids=range(10),
)
def test_plain_data_survives_encoding(values: list[Any]) -> None:
    codec = ColumnCodec()
    parts = codec.encode_parts(values, [n % 3 for n in range(len(values))], 3)
    assert [codec.decode(part) for part in parts] == [values[n::3] for n in range(3)]
    found = codec.decode(codec.encode(values))
    assert found == values
    assert [type(value) for value in found] == [type(value) for value in values]


def test_setters_work_in_every_batch() -> None:
    backend, stores = Store(), PagedStores(SPECS)
    stores.open(backend)
    counts = stores.backing("counts")
    note, set_entry = setters(counts)
    for number in range(3):
        note("k", counts.get("k"))
        set_entry("k", (number, 0))
        stores.flush(backend, {})
        assert stores.open(backend)
    note("k", counts.get("k"))
    set_entry("k", (7, 0))
    stores.forget()
    assert counts == {"k": (2, 0)}
    assert entries(read_stores(backend, SPECS)) == {"counts": {"k": (2, 0)}, "names": {}}
