"""Dead letters of `map_by_key`: rows that failed permanently go to a topic, each once.

In a streaming query no row is lost and none has two letters, however often its batch is run again:
a row that has a letter of an earlier attempt is not processed again and has no output. Each write
of a task has a number that rises under a marker of the query, the operator and the partition. An
attempt that finds writes of its own batch reads back which rows they hold; one that is overtaken by
another attempt fails, and is run again.

Other tasks may run the batch again, so a row is identified (`RowIdentity`) by the record that it
comes from, in whichever task it is, or by its position in its task, if the plan preserves that.

Attempts at a batch DataFrame cannot be distinguished: letters are written each time it is computed.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, time
from hashlib import sha256
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from thulawa.brokers.port import Broker, WriterId, open_broker, read_to_end
from thulawa.core.markers import LastBatch, is_written
from thulawa.core.secrets import masked_address
from thulawa.core.types import ProducerRecord
from thulawa.engine import Outcome, WorkItem
from thulawa.errors import (
    ConfigurationError,
    Fenced,
    OlderBatch,
    ProcessingError,
    ThulawaError,
    message_of,
)
from thulawa.runtime.dead_letter_records import ROW
from thulawa.runtime.handlers import DeadLetterQueue, ErrorRecord
from thulawa.spark.map_by_key.rows import Row
from thulawa.spark.task_context import SparkTask

if TYPE_CHECKING:
    from thulawa.spark.map_by_key.operator import Operator

POSITION = ("topic", "partition", "offset")
"""The columns that name the record a row comes from."""

_LETTERS_PER_WRITE = 1_000
_WRITES = 2**32  # of one task: more than it could have rows
# A task that is killed while it commits keeps the others from reading markers and letters until its
# next attempt, or for this many seconds and those after which Kafka looks for such transactions.
_TRANSACTION_TIMEOUT = 15.0
_MARKERS_TIMEOUT = 2.0
_READ_TIMEOUT = 60.0
_Position: TypeAlias = tuple[str, int, int]


class RowIdentity(NamedTuple):
    """What identifies a row when its batch is run again.

    ``record``: its columns topic, partition and offset, of which no two rows have the same;
    ``position``: its task and its number there, under a plan that is named by ``layout``;
    ``unknown``: nothing, so that a streaming query is rejected.
    """

    by: Literal["record", "position", "unknown"]
    layout: str = ""


UNKNOWN = RowIdentity("unknown")


@dataclass(frozen=True, slots=True)
class DeadLetterTopic:
    """The topic of a broker that dead letters are written to."""

    broker: Broker
    topic: str

    def last_writes(self, writer: WriterId, task: int) -> dict[int, LastBatch]:
        """Return the last write of each task; abort what a killed attempt at this one left open."""
        try:
            return self.broker.markers(writer, timeout=_MARKERS_TIMEOUT)
        except TimeoutError:
            self.broker.fence(writer, [task])
            return self.broker.markers(writer)

    def headers(self, name: str, since: Mapping[int, int]) -> Iterator[bytes]:
        """Yield the values of a header of the letters from these offsets on, else of all."""
        first = self.broker.start_offsets(self.topic)[self.topic]
        starts = {number: max(start, since.get(number, 0)) for number, start in first.items()}
        # other tasks of the batch may be committing letters of rows that are in this task now
        letters = read_to_end(
            self.broker, self.topic, starts, committed=False, timeout=_READ_TIMEOUT
        )
        for letter in letters:
            yield from (value for key, value in letter.headers if key == name and value)

    def write(
        self, letters: list[ProducerRecord], writer: WriterId, task: int, number: LastBatch
    ) -> bool:
        """Write letters under a number; return False if another attempt has written under it."""
        try:
            with self.broker.transaction(writer, task, number) as transaction:
                transaction.write(self.topic, letters)
        except (OlderBatch, Fenced):
            return False
        return not transaction.skipped


def dead_letter_topic(text: str) -> DeadLetterTopic:
    """Return the topic of an address such as ``file:./topics#visits-dead``; raise if there is none.

    >>> dead_letter_topic("visits-dead")
    Traceback (most recent call last):
    ...
    thulawa.errors.ConfigurationError: dead_letters='visits-dead' names no topic of a broker: \
write 'file:./topics#visits-dead' or 'kafka://host:9092#visits-dead'
    """
    address, _, topic = str(text).rpartition("#")
    if not topic or not address.startswith(("file:", "kafka://")):
        raise ConfigurationError(
            f"dead_letters={masked_address(text)!r} names no topic of a broker: write "
            "'file:./topics#visits-dead' or 'kafka://host:9092#visits-dead'"
        )
    broker = open_broker(address, option="dead_letters")
    broker.describe(topic)  # raises if it does not exist
    broker.close()
    return DeadLetterTopic(broker, topic)


class DeadLetters:
    """The dead letters of one operator in one task."""

    def __init__(
        self, topic: DeadLetterTopic, operator: "Operator", task: SparkTask | None
    ) -> None:
        self._topic = topic
        self._name = operator.name
        self._task = task or SparkTask()
        self._rows = operator.row_identity
        self._letters: list[ProducerRecord] = []
        self._writer: WriterId | None = None  # None outside a streaming query
        self._number = 0
        self._origin = ""
        self._layout = ""
        self._seen: set[_Position] = set()
        self._written: dict[str, str] = {}  # by the name of a row, the digest of its key
        if self._task.query is not None and self._task.batch is not None:
            self._begin(self._task.query, self._task.batch, operator.signature)

    def without_written(self, records: list[WorkItem]) -> list[WorkItem]:
        """Return the rows that have no letter of an earlier attempt at this batch."""
        if self._writer is None:
            return records
        if self._rows.by == "record":
            for record in records:
                position = self._position(record)
                if position in self._seen:
                    raise self._ambiguous(position)
                self._seen.add(position)
        if not self._written:
            return records
        return [record for record in records if not self._is_written(record)]

    def add(self, outcome: Outcome) -> None:
        """Add the letter of a failed row; some are written at a time, as any number may fail."""
        self._letters.append(self._letter(outcome))
        if len(self._letters) >= _LETTERS_PER_WRITE:
            self.flush()

    def flush(self) -> None:
        """Write the letters that were added; they are in the topic afterwards."""
        if not self._letters:
            return
        number = LastBatch(self._number, self._layout)
        if self._writer is None:
            self._topic.broker.append(self._topic.topic, self._letters)
        elif not self._topic.write(self._letters, self._writer, self._task.partition, number):
            raise ThulawaError(
                f"{self._name}: another attempt at this batch has written dead letters meanwhile; "
                "this one must be run again to know them"
            )
        self._number += 1
        self._letters = []

    def _begin(self, query: str, batch: int, signature: str) -> None:
        if self._rows.by == "unknown":
            raise ConfigurationError(
                f"{self._name}: its rows cannot be identified when a micro-batch is run again, so "
                "that dead letters would be lost or written twice; keep the columns topic, "
                "partition and offset of the source, or use on_error='column' and write the rows "
                "that failed yourself"
            )
        digest = sha256(signature.encode()).hexdigest()[:16]
        writer = self._writer = WriterId(
            application=self._topic.topic,
            name=f"{query}-{digest}",
            query=f"{query}/{digest}",
            timeout=_TRANSACTION_TIMEOUT,
        )
        own = self._task.partition
        self._origin = f"{writer.query}/{own if self._rows.by == 'position' else '*'}/{batch}/"
        self._number = batch * _WRITES
        found = self._last_writes(batch, writer)
        if own in found:
            self._number = found[own].number + 1
        since: dict[int, int] = {}
        if self._rows.by == "position":
            self._layout = self._rows.layout
            found = {own: found[own]} if own in found else {}
        else:
            # a row may be in another task than before; what the others write now is read in vain,
            # so that the marker says where to begin
            since = self._topic.broker.end_offsets(self._topic.topic)[self._topic.topic]
            for one in found.values():
                begun = json.loads(one.layout or "{}")
                since = {at: min(end, begun.get(str(at), 0)) for at, end in since.items()}
            self._layout = json.dumps(since, separators=(",", ":"))
        if found:
            for origin in self._topic.headers(ROW, since):
                text = origin.decode()
                if text.startswith(self._origin):
                    name, key = _split_identity(text.removeprefix(self._origin))
                    self._written[name] = key

    def _last_writes(self, batch: int, writer: WriterId) -> dict[int, LastBatch]:
        """Return the last write of each task for this batch; raise if a later batch was begun."""
        last_writes = self._topic.last_writes(writer, self._task.partition).items()
        writes = {task: last for task, last in last_writes if last.number >= batch * _WRITES}
        about = f"the dead letters of {self._name}"
        for task, last in writes.items():
            known = LastBatch(last.number // _WRITES, last.layout)
            is_written(batch, known, writer=about, task=task, layout=self._rows.layout)
        return writes

    def _is_written(self, record: WorkItem) -> bool:
        """Return whether a row has a letter; raise if the letter is of another row of its record.

        Behind a shuffle such a row may be in another task, where `without_written` does not see it.
        """
        name, key = _split_identity(self._identity(record))
        if name not in self._written:
            return False
        if key != self._written[name]:
            raise self._ambiguous(self._position(record))
        return True

    def _identity(self, record: WorkItem) -> str:
        if self._writer is None or self._rows.by == "position":
            return str(record.offset)
        name = "/".join(map(str, self._position(record)))
        return f"{name}#{sha256(_key(record.key) or b'').hexdigest()[:16]}"

    def _position(self, record: WorkItem) -> _Position:
        row: Row = record.value
        topic, partition, offset = (row[name] for name in POSITION)
        if topic is None or partition is None or offset is None:
            raise ThulawaError(
                f"{self._name}: a row has no topic, partition or offset, by which dead letters "
                "identify it; drop rows without them, or use on_error='column'"
            )
        return topic, partition, offset

    def _ambiguous(self, position: _Position) -> ThulawaError:
        topic, partition, offset = position
        return ThulawaError(
            f"{self._name}: two rows come from the record {topic}-{partition} at {offset}, or its "
            "key is another when the batch is run again, and dead letters could not tell rows "
            "apart; make several rows of one behind this operator, or use on_error='column'"
        )

    def _letter(self, outcome: Outcome) -> ProducerRecord:
        record = outcome.record
        assert outcome.error is not None
        row: Row = record.value
        in_task = (None, self._task.partition, record.offset)
        topic, partition, offset = topic_position(row) or in_task
        about = ErrorRecord(
            node=self._name,
            key=_key(record.key),
            value=_json(row.as_dict()),
            timestamp=0,
            headers=((ROW, f"{self._origin}{self._identity(record)}".encode()),),
            topic=topic,
            partition=partition,
            offset=offset,
        )
        error = ProcessingError(message_of(outcome.error), node=self._name, offset=record.offset)
        error.__cause__ = outcome.error
        letter = DeadLetterQueue(self._topic.topic).letter(error, about)
        return ProducerRecord(letter.key, letter.value, letter.headers)


def topic_position(row: Row) -> _Position | None:
    """Return topic, partition and offset of a row that has columns of these names, else None."""
    if not {*POSITION}.issubset(row._names):  # noqa: SLF001 of its own layer
        return None
    topic, partition, offset = (row[name] for name in POSITION)
    if isinstance(topic, str) and isinstance(partition, int) and isinstance(offset, int):
        return topic, partition, offset
    return None


def _split_identity(identity: str) -> tuple[str, str]:
    """Return the name of a row, and the digest of its key where a record names it."""
    name, mark, key = identity.rpartition("#")
    return (name, key) if mark else (identity, "")


def _key(key: Any) -> bytes | None:
    if key is None or isinstance(key, bytes):
        return key
    return key.encode() if isinstance(key, str) else _json(key)


def _json(value: Any) -> bytes:
    return json.dumps(_finite(value), ensure_ascii=False, default=_text).encode()


def _finite(value: Any) -> Any:
    """Return a value with text for numbers that JSON does not have, so any row can be written."""
    if isinstance(value, Mapping):
        return {str(name): _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def _text(value: object) -> str:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, date | time) else str(value)
