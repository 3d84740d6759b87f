"""The options and descriptions of topics: frozen value objects."""

from dataclasses import dataclass, field
from typing import NamedTuple

from thulawa.core.names import check_name
from thulawa.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How much a topic keeps; None: no limit.

    ``seconds`` is an age by record timestamp, ``bytes`` and ``records`` are for each partition.
    Retention removes whole batches, the oldest first, so a topic keeps at least this much and up
    to a thousand records more. ``tombstones`` is for how many seconds after a compaction a
    compacted topic keeps a tombstone: as long as a reader may take to read the whole topic.
    """

    seconds: float | None = None
    bytes: int | None = None
    records: int | None = None
    tombstones: float = 86_400.0

    def __post_init__(self) -> None:
        for name in ("seconds", "bytes", "records"):
            limit = getattr(self, name)
            if limit is not None and limit <= 0:
                raise ConfigurationError(f"Retention.{name} must be positive, or None")
        if self.tombstones < 0:
            raise ConfigurationError("Retention.tombstones must not be negative")

    @property
    def limits(self) -> bool:
        """Whether records are removed by age, size or number."""
        return not (self.seconds is None and self.bytes is None and self.records is None)


class Marker(NamedTuple):
    """The identity of a writer's task: a writer (names joined by ``/``) and the index of its task.

    Batch numbers of one marker only ever rise, so the writer has to be another one when they
    start again from 0: a Spark sink puts the id of its query into it, which a new checkpoint
    changes.
    """

    writer: str
    task: int = 0


def check_marker(marker: tuple[str, int] | None, batch: int | None) -> Marker | None:
    """Raise `ConfigurationError` at half a marker, a negative number or an illegal name."""
    if marker is None and batch is None:
        return None
    if marker is None or batch is None:
        raise ConfigurationError("marker and batch go together: give both or neither")
    checked = Marker(*marker)
    for name in checked.writer.split("/"):
        check_name(name, "writer")
    if checked.task < 0 or batch < 0:
        raise ConfigurationError("task index and batch number count from 0")
    return checked


@dataclass(frozen=True, slots=True)
class Appended:
    """The result of an append.

    ``offsets`` holds the offsets that were assigned in each (topic, partition); it is empty when
    the batch was ``skipped`` because its marker says that it had been written before.
    """

    skipped: bool = False
    offsets: dict[tuple[str, int], range] = field(default_factory=dict)

    @property
    def records(self) -> int:
        """The number of records that were written."""
        return sum(map(len, self.offsets.values()))


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The records and bytes that retention and compaction removed."""

    records: int = 0
    bytes: int = 0

    def __add__(self, other: "Cleaned") -> "Cleaned":
        return Cleaned(self.records + other.records, self.bytes + other.bytes)


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition: offsets in [start, end), of which ``records`` are stored in ``bytes``."""

    number: int
    start: int
    end: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """One topic. A topic that is deleted and created again has another ``id``."""

    name: str
    id: int
    retention: Retention
    compact: bool
    partitions: tuple[PartitionDescription, ...]
