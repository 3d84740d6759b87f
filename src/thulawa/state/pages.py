"""A store by pages: which of its entries belong to which page, and how they are written.

Pages grow by linear hashing: no batch ever has to rewrite them all. A page that is split is not
written for that. What its young ones hold is in its own image, and in deltas, until its turn
comes; then it is written together with them.

A *share* is all keys whose digests have the same low bits. Pages are dealt out by these bits, so a
share is whole pages, whatever their number, as long as there are as many pages as shares. A delta
is cut by such bits too. So a share can be read without the others.
"""

from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from itertools import compress, filterfalse, repeat
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from thulawa.core.errors import StateError
from thulawa.state.codec import ColumnCodec
from thulawa.state.specs import StoreSpec
from thulawa.state.tracked import TrackedEntries

__all__ = ["Changes", "Delta", "DeltaPart", "PagedStore", "power", "shares_of", "split_groups"]

MOST_SHARES = 16
CHUNK_ENTRIES = 50_000  # a delta of more is cut, so that no value gets too large for its carrier
_PART_ENTRIES = 256  # that a part of a delta has at least, on average
_NUMBERS = int | float | Decimal


class DeltaPart(msgspec.Struct, array_like=True):
    """Changes of keys whose digests have the same low bits."""

    bits: int
    keys: bytes
    values: bytes
    gone: bytes  # keys that are there no more; empty: none


class Delta(msgspec.Struct, array_like=True):
    """What a batch changed in a store, or a piece of it, in so many parts, a power of two."""

    store: str
    parts: int
    changes: list[DeltaPart]


class Changes(NamedTuple):
    """Keys that have changed: what they hold now and what they held before, None for nothing."""

    keys: list[Any]
    entries: list[Any]
    before: list[Any]
    parts: int  # in which they are written
    digests: list[int] | None  # of the keys, where there are several

    @property
    def grown(self) -> int:
        """How many keys there are more than before."""
        return self.before.count(None) - self.entries.count(None)


class PagedStore:
    """One store: its entries, and which of them belong to which page."""

    def __init__(self, spec: StoreSpec) -> None:
        self.entries = TrackedEntries()
        # others look at all keys when they are opened
        self.in_shares = spec.kind == "key-value"
        self.members: list[list[Any]] = [[]]  # may name a key twice, or one that has gone
        self._keys = ColumnCodec()  # of identities
        self._values = ColumnCodec(spec.value_serde)

    def clear(self, pages: int) -> None:
        """Forget all entries; there are so many pages."""
        dict.clear(self.entries)
        self.members = [[] for _ in range(pages)]

    def arrange(self, pages: int) -> None:
        """Sort the keys into so many pages."""
        self.members = [[] for _ in range(pages)]
        self.add(dict.keys(self.entries))

    def add(self, keys: Iterable[Any]) -> None:
        """Note keys that are new."""
        keys = list(keys)
        self._add(keys, self._digests(keys))

    def _add(self, keys: Iterable[Any], digests: Iterable[int]) -> None:
        """Deal keys out over the pages there are, by linear hashing."""
        members = self.members
        count = len(members)
        if count == 1:
            members[0].extend(keys)
            return
        half = power(count)
        mask = 2 * half - 1
        for key, digest in zip(keys, digests, strict=True):
            page = digest & mask
            members[page if page < count else page - half].append(key)

    def add_fresh(self, changes: Changes) -> None:
        """Note the keys among those that have changed that were not there before."""
        if None in changes.before:
            fresh = [old is None for old in changes.before]
            keys = list(compress(changes.keys, fresh))
            known = changes.digests
            self._add(keys, self._digests(keys) if known is None else compress(known, fresh))

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
        """Return the bytes of a page as it is now."""
        members = self.members[page]
        found = dict(zip(members, self._now(members), strict=True))
        if None in found.values():
            found = {key: entry for key, entry in found.items() if entry is not None}
        keys = self.members[page] = list(found)
        return _joined(self._keys.encode(keys), self._values.encode(list(found.values())))

    def load(self, page: int, image: bytes, *, alone: bool) -> None:
        """Take in the entries of a page; ``alone``: it holds none of a page that was split off."""
        packed_keys, packed_values = _parted(image)
        keys = self._keys.decode(packed_keys)
        dict.update(self.entries, zip(keys, self._values.decode(packed_values), strict=True))
        if alone:
            self.members[page] = keys
        else:
            self.add(keys)

    def changed(self) -> Changes:
        """Return what has changed."""
        before = self.entries.before
        keys = list(before)
        most = min(len(keys) // _PART_ENTRIES, len(self.members), MOST_SHARES)
        parts = power(max(most, 1)) if self.in_shares else 1
        digests = list(self._digests(keys)) if parts > 1 else None
        # in the order in which the entries were made: they lie side by side
        return Changes(keys, self._now(keys), list(before.values()), parts, digests)

    def deltas(self, name: str, changes: Changes) -> Iterator[Delta]:
        """Return changes to be written, in pieces of some ten thousand entries."""
        keys, entries, _, parts, digests = changes
        mask = parts - 1
        for at in range(0, len(keys), CHUNK_ENTRIES):
            some = slice(at, at + CHUNK_ENTRIES)
            places = [0] * len(keys[some])
            if digests is not None:
                places = [digest & mask for digest in digests[some]]
            yield Delta(name, parts, self._parts(keys[some], entries[some], places, parts))

    def take(self, delta: Delta, shares: int, wanted: Callable[[int], bool]) -> None:
        """Take in the changes of some of so many shares."""
        mask = shares - 1
        for part in delta.changes:
            if delta.parts >= shares:
                if wanted(part.bits & mask):
                    self._take(part)
            elif any(map(wanted, range(part.bits, shares, delta.parts))):
                self._take(part, lambda digest: wanted(digest & mask))

    def share_of(self, key: Any, shares: int) -> int | None:
        """Return the share of a key and of all that equal it; None: they may be anywhere."""
        if isinstance(key, str | bytes | _NUMBERS):
            return self._digest(key) & (shares - 1)
        return None

    def _take(self, part: DeltaPart, wanted: Callable[[int], bool] | None = None) -> None:
        entries = self.entries
        keys, values = self._keys.decode(part.keys), self._values.decode(part.values)
        gone = self._keys.decode(part.gone) if part.gone else []
        if wanted is not None:
            chosen = list(map(wanted, self._digests(keys)))
            keys, values = list(compress(keys, chosen)), list(compress(values, chosen))
            gone = list(compress(gone, map(wanted, self._digests(gone))))
        self.add(filterfalse(dict.__contains__.__get__(entries), keys))
        dict.update(entries, zip(keys, values, strict=True))
        entries.apply(zip(gone, repeat(None)))

    def _parts(
        self, keys: list[Any], entries: list[Any], places: list[int], parts: int
    ) -> list[DeltaPart]:
        used = sorted(set(places))
        gone = [b""] * parts
        if None in entries:
            there = [entry is not None for entry in entries]
            absent = [entry is None for entry in entries]
            without = list(compress(places, absent))
            encoded = self._keys.encode_dealt(list(compress(keys, absent)), without, parts)
            for place in set(without):
                gone[place] = encoded[place]
            keys, entries, places = (list(compress(one, there)) for one in (keys, entries, places))
        packed_keys = self._keys.encode_dealt(keys, places, parts)
        packed_entries = self._values.encode_dealt(entries, places, parts)
        return [
            DeltaPart(bits, packed_keys[bits], packed_entries[bits], gone[bits]) for bits in used
        ]

    def _now(self, keys: list[Any]) -> list[Any]:
        """Return the entries of keys that have been read."""
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
        if isinstance(key, _NUMBERS):  # those that are equal have the same hash, in each process
            return crc32(hash(key).to_bytes(8, "little", signed=True))
        return crc32(self._keys.encode([key]))


def shares_of(written: list[int]) -> int:
    """Return how many shares can be read one by one: their pages have images of their own."""
    shares = power(min(len(written), MOST_SHARES))
    while not all(written[1:shares]):
        shares //= 2
    return shares


def split_groups(written: list[int], share: int = 0, shares: int = 1) -> dict[int, list[int]]:
    """Return the pages that have been written, and the first, each with those in its image.

    These are itself and, since it was written, the pages that were split off it or off those.
    """
    heads: dict[int, int] = {}
    found: dict[int, list[int]] = {}
    for page in range(share, len(written), shares):
        head = page if written[page] or not page else heads[_elder(page)]
        heads[page] = head
        found.setdefault(head, []).append(page)
    return found


def power(count: int) -> int:
    """Return the largest power of two that is not above ``count``."""
    return 1 << (count.bit_length() - 1)


def _elder(page: int) -> int:
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
        raise StateError("the bytes are damaged: their lengths do not add up")
    return parts
