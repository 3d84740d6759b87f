"""The pages of one store: which entries belong to which page, and how they are serialized.

Pages grow by linear hashing, so no batch ever rewrites all of them. Splitting a page writes
nothing: child pages stay in the parent's image, plus deltas, until the parent is rewritten; then
the children are written with it.

A *shard* is the set of keys whose digests share their low bits. Pages are assigned by the same
bits, so as long as there are at least as many pages as shards, a shard consists of whole pages.
Deltas are partitioned by these bits too. A shard can therefore be loaded without the others.
"""

from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from itertools import compress, filterfalse, repeat
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from thulawa.errors import StateError
from thulawa.state.backing import TrackedEntries
from thulawa.state.codec import ColumnCodec
from thulawa.state.specs import StoreSpec

MAX_SHARDS = 16
CHUNK_ENTRIES = 50_000  # larger deltas are cut, so that no value exceeds what Spark's state takes
_PART_ENTRIES = 256  # minimum average number of entries in a part of a delta
_NUMBERS = int | float | Decimal


class DeltaPart(msgspec.Struct, array_like=True):
    """Changes of the keys whose digests end with the same ``bits``."""

    bits: int
    keys: bytes
    values: bytes
    removed: bytes  # encoded keys; empty if none was removed


class Delta(msgspec.Struct, array_like=True):
    """The changes of one batch to a store, or a chunk of them, in a power of two of parts."""

    store: str
    parts: int
    changes: list[DeltaPart]


class Changes(NamedTuple):
    """The keys that a batch has changed, with their new and old entries; None: no entry."""

    keys: list[Any]
    entries: list[Any]
    before: list[Any]
    parts: int  # number of parts that the delta is written in
    digests: list[int] | None  # of the keys; None if there is one part

    @property
    def growth(self) -> int:
        """How many more keys the store has than before."""
        return self.before.count(None) - self.entries.count(None)


class PagedStore:
    """One store: its entries, and the keys of each page."""

    def __init__(self, spec: StoreSpec) -> None:
        self.entries = TrackedEntries()
        # the other kinds of stores iterate over all keys when they are opened
        self.is_sharded = spec.kind == "key-value"
        self.page_keys: list[list[Any]] = [[]]  # may contain removed keys, and keys twice
        self._keys = ColumnCodec()  # of identities
        self._values = ColumnCodec(spec.value_serde)

    def arrange(self, pages: int) -> None:
        """Distribute the loaded keys over this number of pages."""
        self.page_keys = [[] for _ in range(pages)]
        self.add(dict.keys(self.entries))

    def add(self, keys: Iterable[Any]) -> None:
        """Assign new keys to their pages."""
        keys = list(keys)
        self._add(keys, self._digests(keys))

    def _add(self, keys: Iterable[Any], digests: Iterable[int]) -> None:
        """Assign keys to the existing pages by linear hashing."""
        page_keys = self.page_keys
        count = len(page_keys)
        if count == 1:
            page_keys[0].extend(keys)
            return
        half = power(count)
        mask = 2 * half - 1
        for key, digest in zip(keys, digests, strict=True):
            page = digest & mask
            page_keys[page if page < count else page - half].append(key)

    def add_fresh(self, changes: Changes) -> None:
        """Assign those of the changed keys to pages that had no entry before."""
        if None in changes.before:
            fresh = [old is None for old in changes.before]
            keys = list(compress(changes.keys, fresh))
            known = changes.digests
            self._add(keys, self._digests(keys) if known is None else compress(known, fresh))

    def split(self, pages: int) -> None:
        """Grow to this number of pages: new pages take their keys from their parents."""
        page_keys, count = self.page_keys, len(self.page_keys)
        moved: list[Any] = []
        for page in range(count, pages):
            parent = page
            while parent >= count:
                parent = parent_page(parent)
            moved += page_keys[parent]
            page_keys[parent] = []
        page_keys.extend([] for _ in range(count, pages))
        self.add(moved)

    def image(self, page: int) -> bytes:
        """Serialize the current entries of a page."""
        keys = self.page_keys[page]
        found = dict(zip(keys, self._now(keys), strict=True))
        if None in found.values():
            found = {key: entry for key, entry in found.items() if entry is not None}
        keys = self.page_keys[page] = list(found)
        return _joined(self._keys.encode(keys), self._values.encode(list(found.values())))

    def load(self, page: int, image: bytes, *, has_children: bool) -> None:
        """Load a page's image; with ``has_children`` it also holds keys of pages split off it."""
        packed_keys, packed_values = _parted(image)
        keys = self._keys.decode(packed_keys)
        dict.update(self.entries, zip(keys, self._values.decode(packed_values), strict=True))
        if has_children:
            self.add(keys)
        else:
            self.page_keys[page] = keys

    def changed(self) -> Changes:
        """Return the changes since the last commit."""
        before = self.entries.before
        keys = list(before)
        most = min(len(keys) // _PART_ENTRIES, len(self.page_keys), MAX_SHARDS)
        parts = power(max(most, 1)) if self.is_sharded else 1
        digests = list(self._digests(keys)) if parts > 1 else None
        # in the order in which the entries were created: they are adjacent in memory
        return Changes(keys, self._now(keys), list(before.values()), parts, digests)

    def deltas(self, name: str, changes: Changes) -> Iterator[Delta]:
        """Yield the changes as deltas of at most `CHUNK_ENTRIES` entries."""
        keys, entries, _, parts, digests = changes
        mask = parts - 1
        for at in range(0, len(keys), CHUNK_ENTRIES):
            chunk = slice(at, at + CHUNK_ENTRIES)
            numbers = [0] * len(keys[chunk])
            if digests is not None:
                numbers = [digest & mask for digest in digests[chunk]]
            yield Delta(name, parts, self._parts(keys[chunk], entries[chunk], numbers, parts))

    def apply(self, delta: Delta, shards: int, wanted: Callable[[int], bool]) -> None:
        """Apply the changes of a delta to the wanted ones of this number of shards."""
        mask = shards - 1
        for part in delta.changes:
            if delta.parts >= shards:
                if wanted(part.bits & mask):
                    self._apply(part)
            elif any(map(wanted, range(part.bits, shards, delta.parts))):
                self._apply(part, lambda digest: wanted(digest & mask))

    def shard_of(self, key: Any, shards: int) -> int | None:
        """Return the shard of a key and of all keys equal to it; None if they may be in any."""
        known = isinstance(key, str | bytes | _NUMBERS)
        return self._digest(key) & (shards - 1) if known else None

    def _apply(self, part: DeltaPart, wanted: Callable[[int], bool] | None = None) -> None:
        entries = self.entries
        keys, values = self._keys.decode(part.keys), self._values.decode(part.values)
        removed = self._keys.decode(part.removed) if part.removed else []
        if wanted is not None:
            chosen = list(map(wanted, self._digests(keys)))
            keys, values = list(compress(keys, chosen)), list(compress(values, chosen))
            removed = list(compress(removed, map(wanted, self._digests(removed))))
        self.add(filterfalse(dict.__contains__.__get__(entries), keys))
        dict.update(entries, zip(keys, values, strict=True))
        entries.apply(zip(removed, repeat(None)))

    def _parts(
        self, keys: list[Any], entries: list[Any], numbers: list[int], parts: int
    ) -> list[DeltaPart]:
        """Encode changes, each in the part with its number."""
        used = sorted(set(numbers))
        removed = [b""] * parts
        if None in entries:
            absent = [entry is None for entry in entries]
            present = [not one for one in absent]
            without = list(compress(numbers, absent))
            encoded = self._keys.encode_parts(list(compress(keys, absent)), without, parts)
            for number in set(without):
                removed[number] = encoded[number]
            keys, entries, numbers = (
                list(compress(column, present)) for column in (keys, entries, numbers)
            )
        packed_keys = self._keys.encode_parts(keys, numbers, parts)
        packed_entries = self._values.encode_parts(entries, numbers, parts)
        return [
            DeltaPart(bits, packed_keys[bits], packed_entries[bits], removed[bits]) for bits in used
        ]

    def _now(self, keys: list[Any]) -> list[Any]:
        """Return the current entries of loaded keys."""
        return list(map(dict.get, repeat(self.entries), keys))

    def _digests(self, keys: list[Any]) -> Iterable[int]:
        kinds = set(map(type, keys))
        if kinds == {str}:
            return map(crc32, map(str.encode, keys))
        return map(crc32, keys) if kinds == {bytes} else map(self._digest, keys)

    def _digest(self, key: Any) -> int:
        if isinstance(key, bytes):
            return crc32(key)
        if isinstance(key, str):
            return crc32(key.encode())
        if isinstance(key, _NUMBERS):  # equal numbers have equal hashes, in every process
            return crc32(hash(key).to_bytes(8, "little", signed=True))
        return crc32(self._keys.encode([key]))


def shard_count(written: list[int]) -> int:
    """Return into how many shards the pages divide such that each shard has its own images."""
    shards = power(min(len(written), MAX_SHARDS))
    while not all(written[1:shards]):
        shards //= 2
    return shards


def split_groups(written: list[int], shard: int = 0, shards: int = 1) -> dict[int, list[int]]:
    """Return the first page and each page with an image, with all pages that its image holds.

    These are the page itself and the pages split off it, or off those, since it was written.
    """
    owners: dict[int, int] = {}
    found: dict[int, list[int]] = {}
    for page in range(shard, len(written), shards):
        owner = page if written[page] or not page else owners[parent_page(page)]
        owners[page] = owner
        found.setdefault(owner, []).append(page)
    return found


def power(count: int) -> int:
    """Return the largest power of two that is not above ``count``."""
    return 1 << (count.bit_length() - 1)


def parent_page(page: int) -> int:
    """Return the page that a page was split off."""
    return page - power(page)


def _joined(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)


def _parted(data: bytes, count: int = 2) -> list[bytes]:
    parts, at = [], 0
    for _ in range(count):
        length = int.from_bytes(data[at : at + 4], "little")
        parts.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    if at != len(data):
        raise StateError("a page of the state is damaged: the lengths of its parts do not add up")
    return parts
