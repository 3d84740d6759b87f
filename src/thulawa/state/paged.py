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

Pages grow by linear hashing: no batch ever has to rewrite them all. A page that is split is not
written for that. What its young ones hold is in its own image, and in deltas, until its turn
comes; then it is written together with them.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeAlias
from uuid import uuid4
from zlib import crc32

import msgspec

from thulawa.core.errors import StateError
from thulawa.state.codec import Codec
from thulawa.state.specs import StoreSpec

__all__ = ["Kept", "PagedStores", "Readable", "Tracked", "read_stores"]

PAGE_ENTRIES = 4096
CHUNK_ENTRIES = 50_000  # a delta of more is cut, so that no value gets too large for its carrier
CATCH_UP = 8  # deltas that are kept for copies that lag, even when all pages are newer
_META = "meta"
_SHARE = 2  # bytes of a delta that pay for a byte of pages

Snapshot: TypeAlias = dict[str, Any]


class Readable(Protocol):
    """Where bytes are found by name."""

    def get(self, name: str, /) -> bytes | None:
        """Give what is kept under a name, or None."""


class Kept(Readable, Protocol):
    """Where bytes are kept by name; what is put becomes true when the batch commits."""

    def put(self, name: str, data: bytes, /) -> None:
        """Keep bytes under a name."""

    def remove(self, name: str, /) -> None:
        """Forget a name."""


class Tracked(dict[Any, Any]):
    """A dict that remembers what its keys held before they were changed."""

    __slots__ = ("before",)

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[Any, Any] = {}

    def __setitem__(self, key: Any, value: Any, /, set_item: Any = dict.__setitem__) -> None:
        if key not in self.before:
            self.before[key] = self.get(key)
        set_item(self, key, value)

    def pop(self, key: Any, default: Any = None, /) -> Any:
        """Remove a key and give its value."""
        if key not in self.before:
            self.before[key] = self.get(key)
        return super().pop(key, default)

    def undo(self) -> None:
        """Put back what the keys held before."""
        before, self.before = self.before, {}
        self.apply(before.items())

    def apply(self, entries: Iterable[tuple[Any, Any]]) -> None:
        """Take entries that are true already; None removes."""
        for key, value in entries:
            if value is None:
                super().pop(key, None)
            else:
                super().__setitem__(key, value)


class _Version(msgspec.Struct):
    """One step of the lineage."""

    number: int
    stamp: str
    chunks: int


class _Meta(msgspec.Struct):
    """What is known about a task's state before any of it is read."""

    lineage: list[_Version]  # the first is what the pages alone hold, at least
    written: dict[str, list[int]]  # of each store: at which version each page was written
    cursor: int  # the page whose turn it is, counted over all stores
    credit: int  # bytes of pages that the deltas so far have paid for
    snapshot: bytes


class _Store:
    """One store: its entries, and which of them belong to which page."""

    def __init__(self, spec: StoreSpec) -> None:
        self.entries = Tracked()
        self.keys = Codec(spec.key_serde)
        self.values = Codec(spec.value_serde)
        self.members: list[list[Any]] = [[]]  # may name a key twice, or one that has gone

    def arrange(self, pages: int) -> None:
        """Sort the keys into so many pages."""
        self.members = [[] for _ in range(pages)]
        self.add(self.entries)

    def add(self, keys: Iterable[Any]) -> None:
        """Note keys that are new: linear hashing over the pages there are."""
        members = self.members
        count = len(members)
        if count == 1:
            members[0].extend(keys)
            return
        power = _power(count)
        mask = 2 * power - 1
        keys = list(keys)
        for key, digest in zip(keys, self._digests(keys), strict=True):
            page = digest & mask
            members[page if page < count else page - power].append(key)

    def split(self, pages: int) -> None:
        """Make so many pages, the young ones out of their elders."""
        members, count = self.members, len(self.members)
        moved: list[Any] = []
        for page in range(count, pages):
            elder = page
            while elder >= count:
                elder = _elder(elder)
            moved += members[elder]
            members[elder] = []
        members.extend([] for _ in range(count, pages))
        self.add(moved)

    def image(self, page: int) -> bytes:
        """Give the bytes of a page as it is now."""
        members = self.members[page]
        found = dict(zip(members, map(self.entries.get, members), strict=True))
        if None in found.values():
            found = {key: entry for key, entry in found.items() if entry is not None}
        keys = self.members[page] = list(found)
        return _joined(self.keys.encode(keys), self.values.encode(list(found.values())))

    def load(self, page: int, image: bytes, *, alone: bool) -> None:
        """Take in the entries of a page; ``alone``: it holds none of a page that was split off."""
        packed_keys, packed_values = _parted(image)
        keys = self.keys.decode(packed_keys)
        dict.update(self.entries, zip(keys, self.values.decode(packed_values), strict=True))
        if alone:
            self.members[page] = keys
        else:
            self.add(keys)

    def _digests(self, keys: list[Any]) -> Iterable[int]:
        kinds = set(map(type, keys))
        if kinds == {str}:
            return map(crc32, map(str.encode, keys))
        return map(crc32, keys) if kinds == {bytes} else map(self._digest, keys)

    def _digest(self, key: Any) -> int:
        if isinstance(key, bytes):
            return crc32(key)
        return crc32(key.encode() if isinstance(key, str) else self.keys.encode([key]))


class PagedStores:
    """All stores of one task, over what is kept.

    ``open`` brings the copy up to what is kept and tells whether it was so already; ``flush``
    writes what changed since; ``forget`` undoes it.
    """

    def __init__(self, specs: Mapping[str, StoreSpec]) -> None:
        self._stores = {name: _Store(spec) for name, spec in specs.items()}
        self._plain = Codec()
        self._number = 0
        self._stamp = ""
        self._pending: str | None = None
        self._snapshot: Snapshot | None = None

    def backing(self, name: str) -> Tracked:
        """Give the entries of a store."""
        return self._stores[name].entries

    @property
    def snapshot(self) -> Snapshot | None:
        """What was kept besides the stores; None when nothing was ever kept."""
        return self._snapshot

    def open(self, kept: Readable) -> bool:
        """Bring the copy up to date; tell whether it is as the last flush here left it."""
        meta = self._meta(kept)
        latest = meta.lineage[-1]
        if self._pending is not None and self._pending == latest.stamp:
            self._confirm(latest)
            return True
        self.forget()
        known = {(version.number, version.stamp) for version in meta.lineage}
        unknown = (self._number, self._stamp) not in known or not self._number
        if unknown:
            self._load_pages(meta, kept)
            self._number = meta.lineage[0].number
        for name, store in self._stores.items():
            pages = len(meta.written.get(name, (0,)))
            if len(store.members) != pages:
                store.arrange(pages)
        for version in meta.lineage:
            if version.number > self._number:
                self._apply(version, kept)
        self._number, self._stamp = latest.number, latest.stamp
        self._snapshot = self._plain.decode(meta.snapshot)[0] if meta.snapshot else None
        return False

    def forget(self) -> None:
        """Undo what was changed since the copy was opened, or flushed without a commit."""
        for store in self._stores.values():
            # a page that was rewritten meanwhile no longer names what had gone
            store.add(key for key, old in store.entries.before.items() if old is not None)
            store.entries.undo()
        self._pending = None

    def flush(self, kept: Kept, snapshot: Snapshot) -> None:
        """Write what changed; the copy stands under a fresh stamp until it is opened again."""
        meta = self._meta(kept)
        number, stamp = self._number + 1, uuid4().hex
        size, chunks = self._write_delta(kept, number)
        meta.lineage.append(_Version(number, stamp, chunks))
        meta.credit += size // _SHARE
        for name, store in self._stores.items():
            _grow(store, meta.written.setdefault(name, [0]))
        self._rewrite(kept, meta, number)
        self._trim(kept, meta)
        self._snapshot = snapshot
        meta.snapshot = self._plain.encode([snapshot])
        kept.put(_META, msgspec.msgpack.encode(meta))
        self._pending = stamp

    def _confirm(self, latest: _Version) -> None:
        for store in self._stores.values():
            store.entries.before = {}
        self._number, self._stamp, self._pending = latest.number, latest.stamp, None

    def _meta(self, kept: Readable) -> _Meta:
        data = kept.get(_META)
        if data is None:
            return _Meta([_Version(0, "", 0)], {}, 0, 0, b"")
        try:
            return msgspec.msgpack.decode(data, type=_Meta)
        except msgspec.DecodeError as error:
            raise StateError("the state of this task is damaged, or not Thulawa's") from error

    # --- reading

    def _load_pages(self, meta: _Meta, kept: Readable) -> None:
        for name, store in self._stores.items():
            written = meta.written.get(name, [0])
            store.entries.clear()
            store.members = [[] for _ in written]
            for page, family in _families(written).items():
                if written[page]:
                    image = _found(kept, _page_name(name, page))
                    store.load(page, image, alone=len(family) == 1)

    def _apply(self, version: _Version, kept: Readable) -> None:
        for chunk in range(version.chunks):
            name, keys, values, gone = _parted(_found(kept, _delta_name(version.number, chunk)), 4)
            store = self._stores.get(bytes(name).decode())
            if store is None:
                continue
            changed = store.keys.decode(keys)
            store.add(key for key in changed if key not in store.entries)
            store.entries.apply(zip(changed, store.values.decode(values), strict=True))
            store.entries.apply((key, None) for key in store.keys.decode(gone))

    # --- writing

    def _write_delta(self, kept: Kept, number: int) -> tuple[int, int]:
        """Write all changes; give how many bytes, in how many chunks."""
        written = chunks = 0
        for name, store in self._stores.items():
            for data in _chunks(name, store):
                kept.put(_delta_name(number, chunks), data)
                written += len(data)
                chunks += 1
            before = store.entries.before
            if None in before.values():
                store.add(key for key, old in before.items() if old is None)
        return written, chunks

    def _rewrite(self, kept: Kept, meta: _Meta, number: int) -> None:
        """Rewrite pages in turn, as far as the credit of the deltas goes."""
        families = {name: _families(meta.written[name]) for name in self._stores}
        places = [(name, page) for name in self._stores for page in range(len(meta.written[name]))]
        for _ in places:
            if meta.credit <= 0:
                return
            name, page = places[meta.cursor % len(places)]
            meta.cursor = (meta.cursor + 1) % len(places)
            written, store = meta.written[name], self._stores[name]
            for member in families[name].get(page, ()):
                meta.credit -= _write_page(kept, name, store, written, member, number)
        meta.credit = 0

    def _trim(self, kept: Kept, meta: _Meta) -> None:
        """Drop the deltas that every page has taken in, but for the last few."""
        oldest = min((_oldest(meta.written[name]) for name in self._stores), default=0)
        while len(meta.lineage) > CATCH_UP and meta.lineage[1].number <= oldest:
            del meta.lineage[0]
            version = meta.lineage[0]
            for chunk in range(version.chunks):
                kept.remove(_delta_name(version.number, chunk))
            version.chunks = 0


def read_stores(kept: Readable, specs: Mapping[str, StoreSpec]) -> PagedStores:
    """Load the stores of a task, to look at."""
    stores = PagedStores(specs)
    stores.open(kept)
    return stores


def _chunks(name: str, store: _Store) -> Iterator[bytes]:
    changed = list(store.entries.before)
    for at in range(0, len(changed), CHUNK_ENTRIES):
        keys = changed[at : at + CHUNK_ENTRIES]
        entries = list(map(store.entries.get, keys))
        gone: list[Any] = []
        if None in entries:
            gone = [key for key, entry in zip(keys, entries, strict=True) if entry is None]
            keys = [key for key, entry in zip(keys, entries, strict=True) if entry is not None]
            entries = [entry for entry in entries if entry is not None]
        encode = store.keys.encode
        yield _joined(name.encode(), encode(keys), store.values.encode(entries), encode(gone))


def _grow(store: _Store, written: list[int]) -> None:
    """Split pages until the entries fit; they are written when it is their turn."""
    pages = -(-len(store.entries) // PAGE_ENTRIES)
    if pages > len(written):
        store.split(pages)
        written.extend([0] * (pages - len(written)))


def _families(written: list[int]) -> dict[int, list[int]]:
    """Give the pages that have been written, and the first, each with those in its image.

    These are itself and, since it was written, the pages that were split off it or off those.
    """
    heads: list[int] = []
    families: dict[int, list[int]] = {}
    for page, number in enumerate(written):
        head = page if number or not page else heads[_elder(page)]
        heads.append(head)
        families.setdefault(head, []).append(page)
    return families


def _oldest(written: list[int]) -> int:
    """Give the version that all pages have, at least."""
    return min(number for page, number in enumerate(written) if number or not page)


def _write_page(
    kept: Kept, name: str, store: _Store, written: list[int], page: int, number: int
) -> int:
    image = store.image(page)
    kept.put(_page_name(name, page), image)
    written[page] = number
    return len(image)


def _found(kept: Readable, name: str) -> bytes:
    data = kept.get(name)
    if data is None:
        raise StateError(f"{name!r} is missing from the state of this task: it is damaged")
    return data


def _page_name(store: str, page: int) -> str:
    return f"page/{store}/{page}"


def _delta_name(number: int, chunk: int) -> str:
    return f"delta/{number}/{chunk}"


def _power(count: int) -> int:
    """Give the largest power of two that is not above ``count``."""
    return 1 << (count.bit_length() - 1)


def _elder(page: int) -> int:
    """Give the page that a page was split off."""
    return page - _power(page)


def _joined(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)


def _parted(data: bytes, count: int = 2) -> list[bytes]:
    parts, at = [], 0
    for _ in range(count):
        length = int.from_bytes(data[at : at + 4], "little")
        parts.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    if at != len(data):
        raise StateError("the bytes are damaged: their lengths do not add up")
    return parts
