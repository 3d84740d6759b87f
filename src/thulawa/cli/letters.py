"""Where dead letters lie: a topic of an embedded log, or of Kafka.

What is sent back is sent in one transaction with its place in the dead-letter topic, so that each
letter goes back once, however often and wherever the command is stopped.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

from thulawa.brokers.embedded import Log, ProducerRecord
from thulawa.brokers.errors import UnknownTopic
from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.reading import read_to_end
from thulawa.brokers.kafka.routing import OutRecord
from thulawa.brokers.kafka.topics import Topics, reachable
from thulawa.brokers.kafka.transactions import Batch, SinkSpec, forget_kept, last_batches, write
from thulawa.cli.topics import open_log
from thulawa.runtime.dead_letters import Letter

__all__ = ["Letters", "letters_at"]

_WHO = "thulawa-dlq"
_RUN = "replay"


class Letters(Protocol):
    """A dead-letter topic."""

    def read(self) -> Iterator[Letter]:
        """Give all letters, each partition in order."""

    def topics(self, names: Collection[str]) -> set[str]:
        """Give those of these topics that there are."""

    def replayed(self) -> dict[int, int]:
        """Give, for each partition, the offset of the last letter that was sent back."""

    def send(self, partition: int, letters: Sequence[tuple[str, Letter]], last: int) -> None:
        """Send letters of a partition to topics, and remember that it is done up to ``last``."""

    def close(self) -> None:
        """Let go of files and connections."""


def letters_at(address: str, topic: str) -> closing[Any]:
    """Open a dead-letter topic at ``kafka://host:port``, or in the folder of an embedded log."""
    if address.startswith("kafka://"):
        return closing(_KafkaLetters(Connection.of(address), topic))
    log = open_log(address)
    log.describe(topic)
    return closing(_LogLetters(log, topic))


@dataclass(frozen=True, slots=True)
class _LogLetters:
    log: Log
    topic: str

    def read(self) -> Iterator[Letter]:
        for partition, start in self.log.start_offsets(self.topic).items():
            for one in self.log.read(self.topic, partition, start):
                yield Letter(
                    one.partition, one.offset, one.timestamp, one.key, one.value, one.headers
                )

    def topics(self, names: Collection[str]) -> set[str]:
        return set(self.log.topics()) & set(names)

    def replayed(self) -> dict[int, int]:
        partitions = self.log.end_offsets(self.topic)
        found = {number: self.log.last_batch(self._marker(number)) for number in partitions}
        return {number: last for number, last in found.items() if last is not None}

    def send(self, partition: int, letters: Sequence[tuple[str, Letter]], last: int) -> None:
        records: dict[str, list[ProducerRecord]] = {}
        for topic, one in letters:
            record = ProducerRecord(one.key, one.value, one.original_headers, one.timestamp)
            records.setdefault(topic, []).append(record)
        self.log.append(records, marker=self._marker(partition), batch=last)

    def close(self) -> None:
        self.log.close()

    def _marker(self, partition: int) -> tuple[str, int]:
        # with its id: the letters of a topic that is made anew have not been sent back
        return f"{_WHO}/{self.topic}/{self.log.describe(self.topic).id}", partition


class _KafkaLetters:
    def __init__(self, connection: Connection, topic: str) -> None:
        reachable(connection)
        self._connection = connection
        self._admin = Topics(connection)
        self._topic = topic
        if self._admin.partitions(topic)[topic] is None:
            raise UnknownTopic("there is no such topic", topic=topic)
        self._sink = SinkSpec(connection=connection, application=_WHO, name=topic)
        # with its id: the letters of a topic that is made anew have not been sent back
        identity = self._admin.identity(topic)
        self._run = _RUN if identity is None else f"{_RUN}/{identity.decode()}"

    def read(self) -> Iterator[Letter]:
        # what a running application has not committed is no letter yet
        for chunk in read_to_end(self._connection, self._topic, committed=True):
            for one in chunk:
                _, timestamp = one.timestamp()
                headers: Any = tuple(one.headers() or ())
                key: Any = one.key()
                yield Letter(
                    one.partition() or 0, one.offset() or 0, timestamp, key, one.value(), headers
                )

    def topics(self, names: Collection[str]) -> set[str]:
        found = self._admin.partitions(*names)
        return {name for name, count in found.items() if count is not None}

    def replayed(self) -> dict[int, int]:
        return last_batches(self._sink, self._run)

    def send(self, partition: int, letters: Sequence[tuple[str, Letter]], last: int) -> None:
        records = [
            OutRecord(topic, one.key, one.value, -1, one.timestamp, one.original_headers)
            for topic, one in letters
        ]
        write(self._sink, Batch(self._run, last, partition), [records])

    def close(self) -> None:
        forget_kept()
