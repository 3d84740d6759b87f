"""The one topic: changes are written to it, and everything is read back from it.

A partition's changes are written all or none, together with the offset up to which it was read for
them, and only if nobody has written changes of that partition up to the same offset or a later one.
So of any instances that count one partition at the same time, knowingly or not, the one that is
further gets through, and the other learns that it is behind; it forgets what it has and reads the
topic again. Nothing can be set back or left out: totals are a function of the offset alone (see
`totals`), and since the writer's changes begin at an offset that it has read or written, none is
missing between the last offset written and this one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from thulawa.core.types import TopicPartition
from thulawa.health.model import Count, decode
from thulawa.health.totals import Totals

__all__ = ["IDENTITY", "Changelog", "Restored", "Stored", "restore"]


IDENTITY = "topic.id"
"""The header that says which topic was counted: one that is made anew has another id."""


class Stored(NamedTuple):
    """A record of the topic; records of one batch have one timestamp.

    ``identity`` is the id of the topic that was counted, where the broker has ids.
    """

    key: bytes
    value: bytes | None
    timestamp: int
    identity: bytes | None = None


class Changelog(Protocol):
    """Where counts are kept."""

    def prepare(self, inputs: Iterable[str]) -> None:
        """See that the inputs are there; make the output, compacted, unless it is there."""

    def claim(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Take partitions over: what an earlier owner had not finished writing is undone.

        Gives the offset up to which each was read for what was written last. What lies before it
        is in the topic, or was not to be counted.
        """

    def read(self, since: dict[int, int] | None = None) -> Iterator[list[Stored]]:
        """Give the records up to the end as it is now, in the order of each partition.

        ``since`` holds the offsets to begin at, and holds those behind the end afterwards.
        """

    def write(
        self,
        changes: Mapping[TopicPartition, Sequence[Count]],
        now: int,
        ends: Mapping[TopicPartition, int],
    ) -> set[TopicPartition]:
        """Write changes, each partition's by itself; give those that got through.

        ``ends`` are the offsets up to which partitions were read for them, perhaps without any
        change. Of those that do not get through somebody has written as far already.
        """

    def identity(self, topic: str) -> bytes | None:
        """Return the id of an input, which differs when it is made anew; None: it has none.

        What is written from then on says that it counts this topic.
        """

    def partitions(self, topic: str) -> int:
        """Give how many partitions an input has."""

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Give, for each partition of an input, the offset of the next message."""

    def start_offsets(self, topic: str) -> dict[int, int]:
        """Give, for each partition of an input, the first offset that is still there."""


@dataclass(slots=True)
class Restored:
    """A partition as the topic tells it, and the totals of the batch that was written last.

    ``identity`` is that of the topic that was counted, as far as it is known.
    """

    totals: Totals
    last: list[Count] = field(default_factory=list)
    written: int = -1
    identity: bytes | None = None


def restore(
    changelog: Changelog, places: Iterable[TopicPartition], expire: int
) -> dict[TopicPartition, Restored]:
    """Read the topic to its end; records of other partitions are passed over."""
    found = {place: Restored(Totals(place, expire)) for place in places}
    if not found:
        return found
    for chunk in changelog.read():
        for key, value, timestamp, identity in chunk:
            count = decode(key, value)
            one = found.get(count.cell.place)
            if one is None:
                continue
            one.totals.restore(count)
            one.identity = identity or one.identity
            if timestamp != one.written:
                one.last, one.written = [], timestamp
            if count.value is not None:
                one.last.append(count)
    return found
