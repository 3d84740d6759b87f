"""Membership in a consumer group, for the assignment alone: nothing is read, nothing committed."""

from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaException

from thulawa.brokers.kafka.client_errors import translated
from thulawa.brokers.kafka.connection import Connection
from thulawa.core.types import TopicPartition


class Membership:
    """A member of a group that divides the partitions of topics among its members.

    The partitions of a member that dies are assigned to others after ``session`` seconds.
    """

    def __init__(
        self, connection: Connection, group: str, topics: Sequence[str], *, session: float = 10.0
    ) -> None:
        self._group = group
        self._consumer = Consumer(
            {
                **connection.client(),
                "group.id": group,
                "session.timeout.ms": int(session * 1000),
                "partition.assignment.strategy": "cooperative-sticky",
                "enable.auto.commit": False,
                "auto.offset.reset": "latest",
                # what comes before it is paused is thrown away
                "queued.max.messages.kbytes": 64,
            }
        )
        self.joined = False
        self._consumer.subscribe(list(topics), on_assign=self._join)

    def assigned(self) -> set[TopicPartition]:
        """Return the partitions of this member now; call it at least every few minutes."""
        try:
            self._consumer.poll(0)
            partitions = self._consumer.assignment()
            self._consumer.pause(partitions)
        except KafkaException as error:
            raise translated(error, f"sharing partitions in group {self._group}") from error
        return {TopicPartition(one.topic, one.partition) for one in partitions}

    def _join(self, *_: object) -> None:
        self.joined = True

    def close(self) -> None:
        """Leave the group; its partitions are assigned to the others at once."""
        self._consumer.close()
