"""Counts in the embedded log: changes and how far they count in one SQLite transaction."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from thulawa.brokers.embedded import Log, ProducerRecord, UnknownTopic
from thulawa.core.errors import ConfigurationError
from thulawa.core.markers import OlderBatch
from thulawa.core.types import TopicPartition
from thulawa.health.changelog import IDENTITY, Stored
from thulawa.health.model import Count, encode_key, encode_value

__all__ = ["LogChangelog"]


class LogChangelog:
    """A compacted topic of the embedded log.

    The marker of a partition's writer is the last offset that was read for it, so the log itself
    skips what comes too late. It has the topic's id: one that is made anew begins anew.
    """

    def __init__(self, address: str, output: str, application: str) -> None:
        self._log = Log(address)
        self._output = output
        self._application = application
        self._identities: dict[str, bytes] = {}

    @property
    def log(self) -> Log:
        """The log."""
        return self._log

    def prepare(self, inputs: Iterable[str]) -> None:
        """See that the inputs are there; make the output unless it is there."""
        there = self._log.topics()
        for topic in inputs:
            if topic not in there:
                raise UnknownTopic("there is no such topic to count", topic=topic)
        if self._output not in there:
            self._log.create_topic(self._output, compact=True)
        elif not self._log.describe(self._output).compact:
            raise ConfigurationError(f"the topic {self._output!r} is not compacted: choose another")

    def claim(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Give how far each was read; what was not committed is gone with its process."""
        last = {place: self._log.last_batch(self._marker(place)) for place in places}
        return {place: 0 if batch is None else batch + 1 for place, batch in last.items()}

    def read(self, since: dict[int, int] | None = None) -> Iterator[list[Stored]]:
        """Give the records up to the end as it is now."""
        since = {} if since is None else since
        for partition, end in self._log.end_offsets(self._output).items():
            start = since.get(partition, self._log.start_offsets(self._output)[partition])
            for columns in self._log.read_columns(self._output, partition, start, end):
                rows = zip(
                    columns.keys, columns.values, columns.timestamps, columns.headers, strict=True
                )
                yield [
                    Stored(key or b"", value, time, dict(headers).get(IDENTITY))
                    for key, value, time, headers in rows
                ]
            since[partition] = end

    def write(
        self,
        changes: Mapping[TopicPartition, Sequence[Count]],
        now: int,
        ends: Mapping[TopicPartition, int],
    ) -> set[TopicPartition]:
        """Write changes, each partition's in a transaction; give those that got through."""
        count = self.partitions(self._output)
        return {
            place
            for place, ones in changes.items()
            if self._append(place, ones, now, place.partition % count, ends[place])
        }

    def _append(
        self, place: TopicPartition, changes: Sequence[Count], now: int, to: int, end: int
    ) -> bool:
        identity = self._identities.get(place.topic)
        headers = () if identity is None else ((IDENTITY, identity),)
        records = [
            ProducerRecord(encode_key(change.cell), encode_value(change), headers, now, to)
            for change in changes
        ]
        try:
            appended = self._log.append(
                {self._output: records}, marker=self._marker(place), batch=end - 1
            )
        except OlderBatch:  # another instance has counted further
            return False
        return not appended.skipped

    def _marker(self, place: TopicPartition) -> tuple[str, int]:
        identity = self._identities.get(place.topic) or self.identity(place.topic)
        writer = f"{self._application}/{self._output}/{place.topic}/{identity.decode()}"
        return writer, place.partition

    def identity(self, topic: str) -> bytes:
        """Return the id of an input, which differs when it is made anew."""
        self._identities[topic] = str(self._log.describe(topic).id).encode()
        return self._identities[topic]

    def partitions(self, topic: str) -> int:
        """Give how many partitions an input has."""
        return len(self._log.end_offsets(topic))

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Give, for each partition of an input, the offset of the next message."""
        return self._log.end_offsets(topic)

    def start_offsets(self, topic: str) -> dict[int, int]:
        """Give, for each partition of an input, the first offset that is still there."""
        return self._log.start_offsets(topic)
