"""Records as a source hands them to a stream program: many of one partition at a time."""

from dataclasses import dataclass

from thulawa.brokers.embedded.batches import Columns, pack, span, unpack

__all__ = ["Behind", "Chunk"]


@dataclass(frozen=True, slots=True)
class Behind:
    """Whether the broker has more records of a partition than the batch reads."""

    topic: str
    partition: int
    behind: bool


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some records of one partition, packed or in columns: in whichever form they came."""

    topic: str
    partition: int
    first: int
    body: bytes | Columns

    @property
    def data(self) -> bytes:
        """The records, packed."""
        return self.body if isinstance(self.body, bytes) else pack(self.body)

    @property
    def span(self) -> tuple[int, int]:
        """The offset after the last record, and the highest timestamp."""
        if isinstance(self.body, bytes):
            return span(self.body, self.first)
        return self.body.offsets[-1] + 1, max(self.body.timestamps)

    @property
    def columns(self) -> Columns:
        """The records, in columns."""
        return unpack(self.body, self.first) if isinstance(self.body, bytes) else self.body
