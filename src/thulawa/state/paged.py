"""The stores of a task in memory, persisted as a log of deltas over pages.

Each batch appends its changes as one *delta* and rewrites half as many bytes of *pages*, in turn,
so the bytes written follow the size of the change, not of the store. A delta is removed once every
page is newer. Loading reads the pages and then applies the deltas after them, in order.

The copy in memory outlives the batch and must never show uncommitted changes. A batch's changes
are applied at once, the replaced values are remembered, and every attempt gets a fresh *stamp*.
The persisted metadata lists the stamps of its history, its *lineage*. `PagedStores.open` has these
cases: the lineage ends with our stamp, so our changes were committed; otherwise ours are undone,
and if the copy then stands at a stamp of the lineage, it applies the deltas that it has missed;
if it does not, it is loaded anew. A failed, repeated or late attempt therefore leaves no trace,
whichever worker it ran on.

A large store is loaded lazily: the pages of a shard (see `state.pages`) and the deltas about it are
read when a key of the shard is accessed. A task resumes at once, and never reads what it does not
access.
"""

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias, TypeVar
from uuid import uuid4

import msgspec

from thulawa.errors import StateError
from thulawa.state.backing import PartlyLoadedEntries, TrackedEntries
from thulawa.state.codec import ColumnCodec
from thulawa.state.pages import Delta, PagedStore, shard_count, split_groups
from thulawa.state.specs import StoreSpec

PAGE_ENTRIES = 4096
CATCH_UP = 8  # deltas that stay for copies that lag, even when all pages are newer
_META = "meta"
_DELTA_BYTES_PER_PAGE_BYTE = 2

Snapshot: TypeAlias = dict[str, Any]
_T = TypeVar("_T")


class StateReader(Protocol):
    """Reads bytes by name."""

    def get(self, name: str, /) -> bytes | None:
        """Return the bytes under a name, or None."""


class StateBackend(StateReader, Protocol):
    """Reads and writes bytes by name; writes become visible when the batch commits."""

    def put(self, name: str, data: bytes, /) -> None:
        """Write bytes under a name."""

    def remove(self, name: str, /) -> None:
        """Remove a name."""


class _Version(msgspec.Struct):
    """One step of the lineage."""

    number: int
    stamp: str
    chunks: int


class _Meta(msgspec.Struct):
    """The metadata of a task's state, read before anything else."""

    lineage: list[_Version]  # the pages alone contain at least the first version
    written: dict[str, list[int]]  # by store: the version at which each page was written
    counts: dict[str, int]  # by store: its number of entries
    cursor: int  # the next page to rewrite, counted over all stores
    credit: int  # bytes of pages that may be rewritten for the deltas so far
    snapshot: bytes


class UnloadedShards:
    """The shards of a store that have not been loaded."""

    def __init__(self, stores: "PagedStores", name: str, shards: int) -> None:
        self._stores = stores
        self._name = name
        self.shards = shards
        self.left = set(range(shards))

    def load(self, key: Any) -> bool:
        """Load the shard of a key; return whether anything was left to load."""
        if not self.left:
            return False
        shard = self._stores.store(self._name).shard_of(key, self.shards)
        if shard is not None:
            return self.load_shard(shard)
        self.load_all()
        return True

    def load_all(self) -> None:
        """Load all shards that are left."""
        for shard in sorted(self.left):
            self.load_shard(shard)

    def is_loaded(self, shard: int) -> bool:
        """Return whether a shard has been loaded."""
        return shard not in self.left

    def load_shard(self, bits: int) -> bool:
        """Load the shard of a page or digest, by its low bits; return whether it was left."""
        shard = bits & (self.shards - 1)
        if shard not in self.left:
            return False
        self._stores.load_shard(self._name, shard, self.shards)
        self.left.remove(shard)
        if not self.left:
            self._stores.store(self._name).entries.__class__ = TrackedEntries
        return True


class PagedStores:
    """All stores of one task, over a state backend.

    ``open`` synchronizes the copy in memory with the backend; ``flush`` writes the changes since;
    ``forget`` undoes them.
    """

    def __init__(self, specs: Mapping[str, StoreSpec]) -> None:
        self._stores = {name: PagedStore(spec) for name, spec in specs.items()}
        self._unloaded = {name: UnloadedShards(self, name, 0) for name in specs}
        self._plain = ColumnCodec()
        self._number = 0
        self._stamp = ""
        self._pending: str | None = None  # the stamp of a flush that may not have committed
        self.snapshot: Snapshot | None = None  # of the last flush
        self._backend: StateReader
        self._meta: _Meta
        self._deltas: dict[str, list[Delta]] = {}  # by stamp, while shards are unloaded
        self._was_partly_loaded = False

    def backing(self, name: str) -> TrackedEntries:
        """Return the entries of a store."""
        return self._stores[name].entries

    def store(self, name: str) -> PagedStore:
        """Return a store with its pages."""
        return self._stores[name]

    def open(self, backend: StateReader) -> bool:
        """Synchronize with the backend; return whether the copy is as the last flush left it.

        The result is also False when the last shard has been loaded since: callers that hold
        methods of partly loaded entries should then fetch the faster ones.
        """
        self._backend, self._meta = backend, _meta(backend)
        latest = self._meta.lineage[-1]
        if self._pending is not None and self._pending == latest.stamp:
            for store in self._stores.values():
                store.entries.before.clear()
            self._number, self._stamp, self._pending = latest.number, latest.stamp, None
            return not self._has_become_loaded()
        self.forget()
        versions = {(version.number, version.stamp) for version in self._meta.lineage}
        known = self._number and (self._number, self._stamp) in versions
        if known:
            self._catch_up()
        self._number, self._stamp = latest.number, latest.stamp
        if not known:
            self._unload()
        self._has_become_loaded()
        meta = self._meta
        self.snapshot = self._plain.decode(meta.snapshot)[0] if meta.snapshot else None
        return False

    def _has_become_loaded(self) -> bool:
        """Return whether the last shard has been loaded since the previous call."""
        partly = any(unloaded.left for unloaded in self._unloaded.values())
        before, self._was_partly_loaded = self._was_partly_loaded, partly
        if not partly:
            self._deltas.clear()
        return before and not partly

    def forget(self) -> None:
        """Undo the changes since the copy was opened, or flushed without a commit."""
        for store in self._stores.values():
            # a page rewritten meanwhile no longer lists the keys that had been removed
            store.add(key for key, old in store.entries.before.items() if old is not None)
            store.entries.undo()
        self._pending = None

    def flush(self, backend: StateBackend, snapshot: Snapshot) -> None:
        """Write the changes under a fresh stamp, which the next `open` confirms or undoes."""
        self._backend, self._meta = backend, _meta(backend)
        meta = self._meta
        number, stamp = self._number + 1, uuid4().hex
        size, chunks = self._write_delta(backend, number)
        meta.lineage.append(_Version(number, stamp, chunks))
        meta.credit += size // _DELTA_BYTES_PER_PAGE_BYTE
        self._rewrite(backend, meta, number)
        self._trim(backend, meta)
        self.snapshot = snapshot
        meta.snapshot = self._plain.encode([snapshot])
        backend.put(_META, msgspec.msgpack.encode(meta))
        self._pending = stamp

    # --- loading

    def _unload(self) -> None:
        """Start with nothing in memory; stores that cannot be sharded are loaded at once."""
        self._deltas.clear()
        for name, store in self._stores.items():
            written = self._meta.written.get(name, [0])
            dict.clear(store.entries)
            store.arrange(len(written))
            shards = shard_count(written) if store.is_sharded else 1
            unloaded = UnloadedShards(self, name, shards if self._meta.counts.get(name) else 0)
            self._unloaded[name] = store.entries.unloaded = unloaded
            store.entries.__class__ = PartlyLoadedEntries if unloaded.left else TrackedEntries
            if shards == 1:
                unloaded.load_all()

    def load_shard(self, name: str, shard: int, shards: int) -> None:
        """Load the pages of a shard, and apply the deltas up to this copy's version."""
        store, written = self._stores[name], self._meta.written.get(name, [0])
        for page, group in split_groups(written, shard, shards).items():
            if written[page]:
                image = _found(self._backend, _page_name(name, page))
                store.load(page, image, has_children=len(group) > 1)
        for version in self._meta.lineage:
            if version.number <= self._number:
                for delta in self._read_deltas(version):
                    if delta.store == name:
                        store.apply(delta, shards, shard.__eq__)

    def _catch_up(self) -> None:
        """Apply the deltas that this copy has missed, to the shards that are loaded."""
        for name, store in self._stores.items():
            pages = len(self._meta.written.get(name, (0,)))
            if len(store.page_keys) != pages:
                store.arrange(pages)
        for version in self._meta.lineage:
            if version.number > self._number:
                for delta in self._read_deltas(version):
                    if delta.store in self._stores:
                        unloaded = self._unloaded[delta.store]
                        store = self._stores[delta.store]
                        store.apply(delta, unloaded.shards, unloaded.is_loaded)

    def _read_deltas(self, version: _Version) -> list[Delta]:
        deltas = self._deltas.get(version.stamp)
        if deltas is None:
            deltas = self._deltas[version.stamp] = []
            for chunk in range(version.chunks):
                name = _delta_name(version.number, chunk)
                damage = f"{name!r} in the state of this task is damaged"
                deltas.append(_decoded(_found(self._backend, name), Delta, damage))
        return deltas

    # --- writing

    def _write_delta(self, backend: StateBackend, number: int) -> tuple[int, int]:
        """Write all changes; return the numbers of bytes and of chunks."""
        written = chunks = 0
        counts = self._meta.counts
        for name, store in self._stores.items():
            changes = store.changed()
            for delta in store.deltas(name, changes):
                data = msgspec.msgpack.encode(delta)
                backend.put(_delta_name(number, chunks), data)
                written += len(data)
                chunks += 1
            counts[name] = counts.get(name, 0) + changes.growth
            self._grow(name)
            store.add_fresh(changes)
        return written, chunks

    def _grow(self, name: str) -> None:
        """Split pages until the entries fit; the new pages are written in their turn."""
        store, written = self._stores[name], self._meta.written.setdefault(name, [0])
        pages = -(-self._meta.counts[name] // PAGE_ENTRIES)
        if pages > len(written):
            for page in range(len(written), pages):
                self._unloaded[name].load_shard(page)
            store.split(pages)
            written.extend([0] * (pages - len(written)))

    def _rewrite(self, backend: StateBackend, meta: _Meta, number: int) -> None:
        """Rewrite pages in turn until the credit is used up."""
        groups = {name: split_groups(meta.written[name]) for name in self._stores}
        pages = [(name, page) for name in self._stores for page in range(len(meta.written[name]))]
        for _ in pages:
            if meta.credit <= 0:
                return
            name, page = pages[meta.cursor % len(pages)]
            meta.cursor = (meta.cursor + 1) % len(pages)
            for member in groups[name].get(page, ()):
                meta.credit -= self._write_page(backend, name, member, number)
        meta.credit = 0

    def _write_page(self, backend: StateBackend, name: str, page: int, number: int) -> int:
        self._unloaded[name].load_shard(page)
        image = self._stores[name].image(page)
        backend.put(_page_name(name, page), image)
        self._meta.written[name][page] = number
        return len(image)

    def _trim(self, backend: StateBackend, meta: _Meta) -> None:
        """Remove the deltas that every page includes, except for the last few."""
        oldest = min((_oldest(meta.written[name]) for name in self._stores), default=0)
        while len(meta.lineage) > CATCH_UP and meta.lineage[1].number <= oldest:
            del meta.lineage[0]
            version = meta.lineage[0]
            for chunk in range(version.chunks):
                backend.remove(_delta_name(version.number, chunk))
            version.chunks = 0


def read_stores(backend: StateReader, specs: Mapping[str, StoreSpec]) -> PagedStores:
    """Open the stores of a task for reading."""
    stores = PagedStores(specs)
    stores.open(backend)
    return stores


def _meta(backend: StateReader) -> _Meta:
    data = backend.get(_META)
    if data is None:
        return _Meta([_Version(0, "", 0)], {}, {}, 0, 0, b"")
    return _decoded(data, _Meta, "the state of this task is damaged, or not Thulawa's")


def _decoded(data: bytes, kind: type[_T], damage: str) -> _T:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise StateError(damage) from error


def _oldest(written: list[int]) -> int:
    """Return the oldest version of a page that has an image."""
    return min(number for page, number in enumerate(written) if number or not page)


def _found(backend: StateReader, name: str) -> bytes:
    data = backend.get(name)
    if data is None:
        raise StateError(f"{name!r} is missing from the state of this task: it is damaged")
    return data


def _page_name(store: str, page: int) -> str:
    return f"page/{store}/{page}"


def _delta_name(number: int, chunk: int) -> str:
    return f"delta/{number}/{chunk}"
