"""Dead-letter topics on any broker, for ``thulawa dlq``.

Letters are sent back in one transaction with their position in the dead-letter topic, so that each
one goes back once, however often and wherever the command is interrupted.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from thulawa.brokers.port import Broker, WriterId, open_broker, read_to_end
from thulawa.core.markers import LastBatch
from thulawa.core.types import ProducerRecord
from thulawa.runtime.dead_letter_records import DeadLetterRecord

__all__ = ["Letters", "letters_at"]

_APPLICATION = "thulawa-dlq"


@dataclass(frozen=True, slots=True)
class Letters:
    """The letters of one dead-letter topic."""

    broker: Broker
    topic: str

    def read(self) -> Iterator[DeadLetterRecord]:
        """Yield all letters, those of a partition in their order.

        Letters of transactions that are still open are left out.
        """
        for _, partition, offset, timestamp, key, value, headers in read_to_end(
            self.broker, self.topic
        ):
            yield DeadLetterRecord(partition, offset, timestamp, key, value, headers)

    def existing(self, topics: Collection[str]) -> set[str]:
        """Return those of the topics that exist."""
        return set(self.broker.partitions(*topics))

    def replayed(self) -> dict[int, int]:
        """Return, for each partition, the offset of the last letter that was sent back."""
        markers = self.broker.markers(self._writer())
        return {partition: last.number for partition, last in markers.items()}

    def send(
        self, partition: int, letters: Sequence[tuple[str, DeadLetterRecord]], last: int
    ) -> None:
        """Send letters of a partition to topics, and store that it is done up to ``last``."""
        with self.broker.transaction(self._writer(), partition, LastBatch(last)) as transaction:
            for topic, one in letters:
                record = ProducerRecord(one.key, one.value, one.original_headers, one.timestamp)
                transaction.write(topic, [record])

    def _writer(self) -> WriterId:
        # with the topic's id: the letters of a topic that is created again have not been sent back
        identity = self.broker.describe(self.topic).id
        return WriterId(
            application=_APPLICATION,
            name=self.topic,
            query="replay" if identity is None else f"replay/{identity}",
            log_key=f"{_APPLICATION}/{self.topic}/{identity}",
        )


@contextmanager
def letters_at(address: str, topic: str) -> Iterator[Letters]:
    """Open a dead-letter topic at ``kafka://host:port``, or in the folder of an embedded log."""
    known = address.startswith("file:") or "://" in address
    broker = open_broker(address if known else f"file:{address}", option="--log")
    try:
        broker.check()
        broker.describe(topic)  # raises if it does not exist
        yield Letters(broker, topic)
    finally:
        broker.close()
