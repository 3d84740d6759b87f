"""A store's changelog: what a batch changed, as records of a compacted topic, and their reading.

A batch gives one record for each key that holds another value after it than before it, whatever
happened in between; None says that the key is gone. Last comes the *position*: how many entries
the store has now, their checksum, and what its task knows besides its stores. The checksum is the
sum, without carry, of one digest per entry, so it follows the changes and not the size of the
store, and does not depend on the order of entries.

A record comes with the value it replaced. Where the tasks of a batch commit one by one, whoever
reads the changelog can so take back a batch that only some of them have written.
"""

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from thulawa.core.errors import StateError
from thulawa.state.codec import ColumnCodec
from thulawa.state.specs import StoreSpec
from thulawa.state.tracked import TrackedEntries

__all__ = ["POSITION", "ChangelogRecord", "Position", "StoreChangelog"]

POSITION = b"position"  # in the place of a key: what the codec writes begins otherwise
_FORMAT = 1  # 1: records are under the identities of keys


class Position(msgspec.Struct, frozen=True, array_like=True):
    """Where a store is after a batch; ``known`` is what its task knows besides its stores."""

    entries: int = 0
    checksum: int = 0
    known: bytes = b""
    format: int = 0

    def encode(self) -> bytes:
        """Return it as bytes."""
        return msgspec.msgpack.encode(msgspec.structs.replace(self, format=_FORMAT))

    @classmethod
    def decode(cls, data: bytes) -> "Position":
        """Read what `encode` gave."""
        try:
            found = msgspec.msgpack.decode(data, type=cls)
        except msgspec.DecodeError as error:
            raise StateError("a changelog is damaged, or was not written by Thulawa") from error
        if found.format != _FORMAT:
            raise StateError(
                "a changelog was written by another version of Thulawa: go on with that one, or "
                "begin anew under another application_id"
            )
        return cls(found.entries, found.checksum, found.known)

    def bare(self) -> "Position":
        """Return it without what the task knows."""
        return Position(self.entries, self.checksum)

    def holds(self, other: "Position") -> bool:
        """Return whether two stores have the same entries."""
        return (self.entries, self.checksum) == (other.entries, other.checksum)


class ChangelogRecord(NamedTuple):
    """One record of a changelog, with the value that it replaces."""

    key: bytes
    value: bytes | None
    before: bytes | None


class StoreChangelog:
    """Write what changes in a store as records, and read them.

    Keys and values must be written the same way each time they are: a serde that gives other
    bytes for the same value breaks the checksum.
    """

    def __init__(self, spec: StoreSpec) -> None:
        self._keys = ColumnCodec()  # of identities
        self._values = ColumnCodec(spec.value_serde)

    def changes(
        self, entries: TrackedEntries, last: Position | None, known: bytes
    ) -> tuple[list[ChangelogRecord], Position]:
        """Return the records of what has changed since the last commit, and the new position."""
        count, checksum = (last.entries, last.checksum) if last is not None else (0, 0)
        found: list[ChangelogRecord] = []
        for key, old in entries.before.items():
            value, before = self._value(entries.get(key)), self._value(old)
            if value == before:
                continue
            name = self._keys.encode([key])
            if before is not None:
                count, checksum = count - 1, checksum ^ _digest(name, before)
            if value is not None:
                count, checksum = count + 1, checksum ^ _digest(name, value)
            found.append(ChangelogRecord(name, value, before))
        position = Position(count, checksum, known)
        found.append(
            ChangelogRecord(POSITION, position.encode(), None if last is None else last.encode())
        )
        return found, position

    def read(self, key: bytes, value: bytes | None) -> tuple[Any, Any]:
        """Return key and value of a record that is no position; None: the key is gone."""
        (name,) = self._keys.decode(key)
        return name, None if value is None else self._values.decode(value)[0]

    def position(self, entries: Mapping[Any, Any]) -> Position:
        """Count the entries of a store anew, and sum them up."""
        return Position(len(entries), self._checksum(entries.items()))

    def _checksum(self, entries: Iterable[tuple[Any, Any]]) -> int:
        checksum = 0
        for key, value in entries:
            checksum ^= _digest(self._keys.encode([key]), self._values.encode([value]))
        return checksum

    def _value(self, value: Any) -> bytes | None:
        return None if value is None else self._values.encode([value])


def _digest(key: bytes, value: bytes) -> int:
    data = len(key).to_bytes(8, "big") + key + value
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")
