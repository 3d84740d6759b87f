"""The changelog of a store: the changes of each batch as records of a compacted topic.

A batch writes one record for each key whose value after the batch differs from that before it; a
value of None is a tombstone. The last record is the *position*: the number of entries, their
checksum, and the task's snapshot. The checksum is the XOR of one digest per entry, so its cost
follows the changes, not the size of the store, and the order of entries does not matter.

Each record also carries the value it replaced. The tasks of a batch commit one by one; with the
old values a batch that only some of them have committed can be rolled back.
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from thulawa.errors import StateError
from thulawa.state.backing import TrackedEntries
from thulawa.state.codec import ColumnCodec
from thulawa.state.specs import StoreSpec

POSITION = b"position"  # the key of positions; encoded identities begin differently
_FORMAT = 1  # 1: the keys of records are key identities


class Position(msgspec.Struct, frozen=True, array_like=True):
    """The state of a store after a batch; ``known`` is the encoded snapshot of its task."""

    entries: int = 0
    checksum: int = 0
    known: bytes = b""
    format: int = 0

    def encode(self) -> bytes:
        """Encode the position."""
        return msgspec.msgpack.encode(msgspec.structs.replace(self, format=_FORMAT))

    @classmethod
    def decode(cls, data: bytes) -> "Position":
        """Decode what `encode` returned; raise `StateError` for anything else."""
        try:
            found = msgspec.msgpack.decode(data, type=cls)
        except msgspec.DecodeError as error:
            raise StateError("a changelog is damaged, or was not written by Thulawa") from error
        if found.format != _FORMAT:
            raise StateError(
                "a changelog was written by another version of Thulawa: use that version, or "
                "start with another application_id"
            )
        return cls(found.entries, found.checksum, found.known)

    def bare(self) -> "Position":
        """Return the position without the task's snapshot."""
        return Position(self.entries, self.checksum)

    def holds(self, other: "Position") -> bool:
        """Return whether two positions stand for the same entries."""
        return (self.entries, self.checksum) == (other.entries, other.checksum)


class ChangelogRecord(NamedTuple):
    """One record of a changelog, with the value that it replaces."""

    key: bytes
    value: bytes | None
    before: bytes | None


class StoreChangelog:
    """Convert the changes of a store to changelog records, and back.

    Serdes must be deterministic: other bytes for the same value break the checksum.
    """

    def __init__(self, spec: StoreSpec) -> None:
        self._keys = ColumnCodec()  # of identities
        self._values = ColumnCodec(spec.value_serde)

    def changes(
        self, entries: TrackedEntries, last: Position | None, known: bytes
    ) -> tuple[list[ChangelogRecord], Position]:
        """Return the records of the changes since the last commit, and the new position."""
        start = last or Position()
        count, checksum = start.entries, start.checksum
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
        before = None if last is None else last.encode()
        found.append(ChangelogRecord(POSITION, position.encode(), before))
        return found, position

    def read(self, key: bytes, value: bytes | None) -> tuple[Any, Any]:
        """Return key and value of a record that is not a position; None is a tombstone."""
        (name,) = self._keys.decode(key)
        return name, None if value is None else self._values.decode(value)[0]

    def position(self, entries: Mapping[Any, Any]) -> Position:
        """Compute the position of a store from all its entries."""
        checksum = 0
        for key, value in entries.items():
            checksum ^= _digest(self._keys.encode([key]), self._values.encode([value]))
        return Position(len(entries), checksum)

    def _value(self, value: Any) -> bytes | None:
        return None if value is None else self._values.encode([value])


def _digest(key: bytes, value: bytes) -> int:
    data = len(key).to_bytes(8, "big") + key + value
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")
