"""The stores of a task in memory, and how they are kept: a log of changes over pages.

Each batch appends what it changed as one *delta* and rewrites half as many bytes of *pages*, in
turn, so that what is written follows what changed, not what is stored. A delta goes when every
page is newer. To load is to read the pages and the deltas after them, in order.

The copy in memory outlives the batch, and must never show what did not commit. A batch's
changes are applied at once, with the values they replaced kept aside, and stand under a
*stamp* that is fresh for every attempt. What is kept names the stamps it went through, its
*lineage*. On the next opening there are four cases: it ends with our stamp, so our changes
became true; else ours are undone first, and if the copy is then at a stamp of the lineage it
takes the deltas it has missed; if it is not, it is loaded anew. A failed, repeated or late
attempt therefore leaves no trace, whatever worker it ran on.

A copy that is loaded anew reads nothing yet, where a store is large: the pages of a share of the
keys (see `state.pages`), and what deltas say about them, are read when a key of it is asked for. So
a task goes on at once, and what it never asks for it never reads.
"""

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias
from uuid import uuid4

import msgspec

from thulawa.core.errors import StateError
from thulawa.state.codec import ColumnCodec
from thulawa.state.pages import Delta, PagedStore, shares_of, split_groups
from thulawa.state.specs import StoreSpec
from thulawa.state.tracked import PartlyLoadedEntries, TrackedEntries

__all__ = ["PagedStores", "StateBackend", "StateReader", "read_stores"]

PAGE_ENTRIES = 4096
CATCH_UP = 8  # deltas that are kept for copies that lag, even when all pages are newer
_META = "meta"
_SHARE = 2  # bytes of a delta that pay for a byte of pages

Snapshot: TypeAlias = dict[str, Any]


class StateReader(Protocol):
    """Where bytes are found by name."""

    def get(self, name: str, /) -> bytes | None:
        """Return what is kept under a name, or None."""


class StateBackend(StateReader, Protocol):
    """Where bytes are kept by name; what is put becomes true when the batch commits."""

    def put(self, name: str, data: bytes, /) -> None:
        """Keep bytes under a name."""

    def remove(self, name: str, /) -> None:
        """Forget a name."""


class _Version(msgspec.Struct):
    """One step of the lineage."""

    number: int
    stamp: str
    chunks: int


class _Meta(msgspec.Struct):
    """What is known about a task's state before any of it is read."""

    lineage: list[_Version]  # the first is what the pages alone hold, at least
    written: dict[str, list[int]]  # of each store: at which version each page was written
    counts: dict[str, int]  # of each store: its entries
    cursor: int  # the page whose turn it is, counted over all stores
    credit: int  # bytes of pages that the deltas so far have paid for
    snapshot: bytes


class _Unread:
    """The shares of a store that have not been read."""

    def __init__(self, stores: "PagedStores", name: str, shares: int) -> None:
        self._stores = stores
        self._name = name
        self.shares = shares
        self.left = set(range(shares))

    def read(self, key: Any) -> bool:
        """Read the share of a key, unless it has been."""
        if not self.left:
            return False
        share = self._stores.store(self._name).share_of(key, self.shares)
        if share is not None:
            return self._read_share(share)
        self.read_all()
        return True

    def read_page(self, page: int) -> None:
        """Read the share that a page belongs to, unless it has been."""
        self._read_share(page & (self.shares - 1))

    def read_all(self) -> None:
        """Read all that is left."""
        for share in sorted(self.left):
            self._read_share(share)

    def is_read(self, share: int) -> bool:
        """Return whether a share has been read."""
        return share not in self.left

    def _read_share(self, share: int) -> bool:
        if share not in self.left:
            return False
        self._stores.read_share(self._name, share, self.shares)
        self.left.remove(share)
        if not self.left:
            self._stores.store(self._name).entries.__class__ = TrackedEntries
        return True


class PagedStores:
    """All stores of one task, over what is kept.

    ``open`` brings the copy up to what is kept and tells whether it was so already; ``flush``
    writes what changed since; ``forget`` undoes it.
    """

    def __init__(self, specs: Mapping[str, StoreSpec]) -> None:
        self._stores = {name: PagedStore(spec) for name, spec in specs.items()}
        self._unread = {name: _Unread(self, name, 0) for name in specs}
        self._plain = ColumnCodec()
        self._number = 0
        self._stamp = ""
        self._pending: str | None = None
        self._snapshot: Snapshot | None = None
        self._kept: StateReader
        self._meta: _Meta
        self._deltas: dict[str, list[Delta]] = {}  # by stamp, while they are needed
        self._was_partly_read = False

    def backing(self, name: str) -> TrackedEntries:
        """Return the entries of a store."""
        return self._stores[name].entries

    def store(self, name: str) -> PagedStore:
        """Return a store with its pages."""
        return self._stores[name]

    @property
    def snapshot(self) -> Snapshot | None:
        """What was kept besides the stores; None when nothing was ever kept."""
        return self._snapshot

    def open(self, kept: StateReader) -> bool:
        """Bring the copy up to date; tell whether it is as the last flush here left it.

        It also tells that it is not when all has been read in the end: whoever asks a store that
        is partly read does so the slow way, and can then take the fast one.
        """
        self._kept, self._meta = kept, _meta(kept)
        latest = self._meta.lineage[-1]
        if self._pending is not None and self._pending == latest.stamp:
            self._confirm(latest)
            return not self._has_been_read()
        self.forget()
        versions = {(version.number, version.stamp) for version in self._meta.lineage}
        known = self._number and (self._number, self._stamp) in versions
        if known:
            self._catch_up()
        self._number, self._stamp = latest.number, latest.stamp
        if not known:
            self._begin()
        self._has_been_read()
        meta = self._meta
        self._snapshot = self._plain.decode(meta.snapshot)[0] if meta.snapshot else None
        return False

    def _has_been_read(self) -> bool:
        """Return whether the last of what was not read has been, since this was last asked."""
        partly = any(unread.left for unread in self._unread.values())
        before, self._was_partly_read = self._was_partly_read, partly
        if not partly:
            self._deltas.clear()
        return before and not partly

    def forget(self) -> None:
        """Undo what was changed since the copy was opened, or flushed without a commit."""
        for store in self._stores.values():
            # a page that was rewritten meanwhile no longer names what had gone
            store.add(key for key, old in store.entries.before.items() if old is not None)
            store.entries.undo()
        self._pending = None

    def flush(self, kept: StateBackend, snapshot: Snapshot) -> None:
        """Write what changed; the copy stands under a fresh stamp until it is opened again."""
        self._kept, self._meta = kept, _meta(kept)
        meta = self._meta
        number, stamp = self._number + 1, uuid4().hex
        size, chunks = self._write_delta(kept, number)
        meta.lineage.append(_Version(number, stamp, chunks))
        meta.credit += size // _SHARE
        self._rewrite(kept, meta, number)
        self._trim(kept, meta)
        self._snapshot = snapshot
        meta.snapshot = self._plain.encode([snapshot])
        kept.put(_META, msgspec.msgpack.encode(meta))
        self._pending = stamp

    def _confirm(self, latest: _Version) -> None:
        for store in self._stores.values():
            store.entries.before.clear()
        self._number, self._stamp, self._pending = latest.number, latest.stamp, None

    # --- reading

    def _begin(self) -> None:
        """Begin with nothing read; stores that cannot be read in shares are read at once."""
        self._deltas.clear()
        for name, store in self._stores.items():
            written = self._meta.written.get(name, [0])
            store.clear(len(written))
            shares = shares_of(written) if store.in_shares else 1
            unread = _Unread(self, name, shares if self._meta.counts.get(name) else 0)
            self._unread[name] = store.entries.unread = unread
            store.entries.__class__ = PartlyLoadedEntries if unread.left else TrackedEntries
            if shares == 1:
                unread.read_all()

    def read_share(self, name: str, share: int, shares: int) -> None:
        """Read the pages of a share, and what the deltas up to this copy's version changed."""
        store, written = self._stores[name], self._meta.written.get(name, [0])
        for page, family in split_groups(written, share, shares).items():
            if written[page]:
                image = _found(self._kept, _page_name(name, page))
                store.load(page, image, alone=len(family) == 1)
        for version in self._meta.lineage:
            if version.number <= self._number:
                for delta in self._read_deltas(version):
                    if delta.store == name:
                        store.take(delta, shares, share.__eq__)

    def _catch_up(self) -> None:
        """Take the deltas that have been missed, as far as what they are about has been read."""
        for name, store in self._stores.items():
            pages = len(self._meta.written.get(name, (0,)))
            if len(store.members) != pages:
                store.arrange(pages)
        for version in self._meta.lineage:
            if version.number > self._number:
                for delta in self._read_deltas(version):
                    if delta.store in self._stores:
                        unread = self._unread[delta.store]
                        self._stores[delta.store].take(delta, unread.shares, unread.is_read)

    def _read_deltas(self, version: _Version) -> list[Delta]:
        if version.stamp not in self._deltas:
            self._deltas[version.stamp] = [
                _delta(self._kept, _delta_name(version.number, chunk))
                for chunk in range(version.chunks)
            ]
        return self._deltas[version.stamp]

    # --- writing

    def _write_delta(self, kept: StateBackend, number: int) -> tuple[int, int]:
        """Write all changes; give how many bytes, in how many chunks."""
        written = chunks = 0
        counts = self._meta.counts
        for name, store in self._stores.items():
            changes = store.changed()
            for delta in store.deltas(name, changes):
                data = msgspec.msgpack.encode(delta)
                kept.put(_delta_name(number, chunks), data)
                written += len(data)
                chunks += 1
            counts[name] = counts.get(name, 0) + changes.grown
            self._grow(name)
            store.add_fresh(changes)
        return written, chunks

    def _grow(self, name: str) -> None:
        """Split pages until the entries fit; they are written when it is their turn."""
        store, written = self._stores[name], self._meta.written.setdefault(name, [0])
        pages = -(-self._meta.counts[name] // PAGE_ENTRIES)
        if pages > len(written):
            for page in range(len(written), pages):
                self._unread[name].read_page(page)
            store.split(pages)
            written.extend([0] * (pages - len(written)))

    def _rewrite(self, kept: StateBackend, meta: _Meta, number: int) -> None:
        """Rewrite pages in turn, as far as the credit of the deltas goes."""
        members = {name: split_groups(meta.written[name]) for name in self._stores}
        places = [(name, page) for name in self._stores for page in range(len(meta.written[name]))]
        for _ in places:
            if meta.credit <= 0:
                return
            name, page = places[meta.cursor % len(places)]
            meta.cursor = (meta.cursor + 1) % len(places)
            for member in members[name].get(page, ()):
                meta.credit -= self._write_page(kept, name, member, number)
        meta.credit = 0

    def _write_page(self, kept: StateBackend, name: str, page: int, number: int) -> int:
        self._unread[name].read_page(page)
        image = self._stores[name].image(page)
        kept.put(_page_name(name, page), image)
        self._meta.written[name][page] = number
        return len(image)

    def _trim(self, kept: StateBackend, meta: _Meta) -> None:
        """Drop the deltas that every page has taken in, but for the last few."""
        oldest = min((_oldest(meta.written[name]) for name in self._stores), default=0)
        while len(meta.lineage) > CATCH_UP and meta.lineage[1].number <= oldest:
            del meta.lineage[0]
            version = meta.lineage[0]
            for chunk in range(version.chunks):
                kept.remove(_delta_name(version.number, chunk))
            version.chunks = 0


def read_stores(kept: StateReader, specs: Mapping[str, StoreSpec]) -> PagedStores:
    """Load the stores of a task, to look at."""
    stores = PagedStores(specs)
    stores.open(kept)
    return stores


def _meta(kept: StateReader) -> _Meta:
    data = kept.get(_META)
    if data is None:
        return _Meta([_Version(0, "", 0)], {}, {}, 0, 0, b"")
    try:
        return msgspec.msgpack.decode(data, type=_Meta)
    except msgspec.DecodeError as error:
        raise StateError("the state of this task is damaged, or not Thulawa's") from error


def _delta(kept: StateReader, name: str) -> Delta:
    try:
        return msgspec.msgpack.decode(_found(kept, name), type=Delta)
    except msgspec.DecodeError as error:
        raise StateError(f"{name!r} in the state of this task is damaged") from error


def _oldest(written: list[int]) -> int:
    """Return the version that all pages have, at least."""
    return min(number for page, number in enumerate(written) if number or not page)


def _found(kept: StateReader, name: str) -> bytes:
    data = kept.get(name)
    if data is None:
        raise StateError(f"{name!r} is missing from the state of this task: it is damaged")
    return data


def _page_name(store: str, page: int) -> str:
    return f"page/{store}/{page}"


def _delta_name(number: int, chunk: int) -> str:
    return f"delta/{number}/{chunk}"
