"""A producer: records gather in memory and go to the log in batches, each exactly once.

A flush may be interrupted (Ctrl-C, a signal) after its transaction was committed and before the
producer knows. It then sends the same batch again with the next flush, and the log skips it if it
is there: every producer numbers its batches under a marker of its own. State that belongs together
is assigned in one statement, which no signal can come between.
"""

import os
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Self, TypeAlias
from uuid import uuid4

from thulawa.brokers.embedded.packing import check_for
from thulawa.brokers.embedded.topic_options import Appended, Marker
from thulawa.brokers.embedded.topic_table import StoredTopic
from thulawa.core.types import Headers, ProducerRecord
from thulawa.errors import ConfigurationError
from thulawa.priority.buckets import Buckets
from thulawa.priority.placement import LOOK_BACK, Placing

if TYPE_CHECKING:
    from thulawa.brokers.embedded.log import Log

HeadersLike: TypeAlias = Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]

_MAX_BYTES = 16 * 1024 * 1024


class Producer:
    """Writes records; one that `flush` has confirmed is never lost, and is there once.

    Records wait in memory until `flush`, until ``batch_records`` of them (or 16 MB) are there,
    or until the producer is closed; leaving its ``with`` block closes it, by an exception too.
    When a flush fails, the records are still waiting, and flush may be called again. With
    ``buckets`` records go to the partitions of their bucket and carry its stamp; a topic that
    holds records of another layout is rejected. A producer belongs to one thread.
    """

    def __init__(
        self, log: "Log", *, batch_records: int = 10_000, buckets: Buckets | None = None
    ) -> None:
        if batch_records < 1:
            raise ConfigurationError("batch_records must be at least 1")
        self._log = log
        self._batch_records = batch_records
        self._marker = Marker(f"producer/{uuid4().hex}")
        self._batch = 0
        self._sending: dict[str, list[ProducerRecord]] = {}
        self._topics: dict[str, StoredTopic] = {}
        self._waiting: dict[str, list[ProducerRecord]] = {}
        self._records = 0
        self._bytes = 0
        self._placing = (
            None if buckets is None else Placing(buckets, partial(newest, log), first=os.getpid())
        )

    @property
    def dropped(self) -> int:
        """The number of records that were dropped because their bucket is unknown."""
        return 0 if self._placing is None else self._placing.dropped

    def send(
        self,
        topic: str,
        *,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: HeadersLike = (),
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> None:
        """Add a record; it is in the log after the next `flush`."""
        if topic not in self._topics:
            self._topics[topic] = self._log.topic(topic)
        pairs: Headers = ()
        if headers:  # most records have none, and the check of the type is slow
            pairs = tuple(headers.items() if isinstance(headers, Mapping) else headers)
        record = ProducerRecord(key, value, pairs, timestamp, partition)
        size = check_for(self._topics[topic], record)
        if self._placing is not None:
            found = placed(self._placing, topic, record)
            if found is None:
                return
            record = found
        self._bytes += size
        self._waiting.setdefault(topic, []).append(record)
        self._records += 1
        if self._records >= self._batch_records or self._bytes >= _MAX_BYTES:
            self.flush()

    def flush(self) -> Appended:
        """Write the records that wait, to all topics in one transaction; return their offsets."""
        if self._sending:
            self._send()
        self._sending, self._waiting, self._records, self._bytes = self._waiting, {}, 0, 0
        self._topics = {}  # by the next flush they may be others
        return self._send() if self._sending else Appended()

    def discard(self) -> None:
        """Discard the records that wait, for instance after a flush that cannot succeed."""
        self._sending, self._batch = {}, self._batch + 1
        self._waiting, self._records, self._bytes = {}, 0, 0

    def close(self) -> None:
        """Flush; the producer may be used again."""
        self.flush()
        if self._batch:
            self._log.forget(self._marker)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self) -> Appended:
        # the same records under the same number, however often it takes
        appended = self._log.append(self._sending, marker=self._marker, batch=self._batch)
        self._sending, self._batch = {}, self._batch + 1
        return appended


def newest(log: "Log", topic: str) -> dict[int, list[Headers]]:
    """Return the headers of the newest records of each partition."""
    starts = log.start_offsets(topic)
    return {
        partition: [
            record.headers
            for record in log.read(topic, partition, max(starts[partition], end - LOOK_BACK), end)
        ]
        for partition, end in log.end_offsets(topic).items()
    }


def placed(placing: Placing, topic: str, record: ProducerRecord) -> ProducerRecord | None:
    """Return a record with the partition and the stamp of its bucket; None if it is dropped.

    A record that names its partition is not changed.
    """
    if record.partition is not None:
        return record
    found = placing(topic, record.key, record.headers)
    return None if found is None else record._replace(partition=found[0], headers=tuple(found[1]))
