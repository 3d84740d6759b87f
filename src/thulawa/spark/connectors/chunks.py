"""Chunks: many records of one partition, as a source passes them to a stream program."""

from dataclasses import dataclass

from thulawa.brokers.embedded.batches import Columns, pack, span, unpack


@dataclass(frozen=True, slots=True)
class Behind:
    """Whether a partition has more records than the micro-batch reads."""

    topic: str
    partition: int
    behind: bool


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive records of one partition, packed or in columns, as the broker returned them."""

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
