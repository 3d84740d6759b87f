"""Dead letters of `map_by_key`: rows that failed for good go to a topic, each once.

In a streaming query no row is lost and none is set aside twice, however often its batch is run
again: a row that an earlier attempt has set aside stays there, is not called again and gives no
output. Each write of a task has a number that rises under a marker of the query, the operator
and the partition. An attempt that finds writes of its own batch reads back which rows they
hold; one that is overtaken by another attempt fails, and is run again.

A batch DataFrame has no attempts that could be told apart: letters are written each time it is
computed.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, time
from hashlib import sha256
from math import isfinite
from typing import Any, Protocol

from thulawa.core.errors import ConfigurationError, ProcessingError, ThulawaError
from thulawa.engine import Outcome
from thulawa.log import Log, ProducerRecord
from thulawa.runtime.handlers import DeadLetterQueue, ErrorRecord
from thulawa.runtime.letters import ROW
from thulawa.spark.rows import Row
from thulawa.spark.task import Task

__all__ = ["DeadLetters", "LogTopic", "Place", "place_of"]

_AT_ONCE = 1_000
_WRITES = 2**32  # of one task: more than it could have rows


class Place(Protocol):
    """Where dead letters go; what it keeps of a marker and its records is one transaction."""

    @property
    def topic(self) -> str:
        """The topic's name."""

    def last_write(self, marker: tuple[str, int]) -> int | None:
        """Give the number of the last write under a marker."""

    def headers(self, name: str) -> Iterator[bytes]:
        """Give the values of a header of all letters that are there."""

    def write(
        self, letters: list[ProducerRecord], marker: tuple[str, int] | None, number: int | None
    ) -> bool:
        """Write letters under a number; tell whether it was free."""


@dataclass(frozen=True, slots=True)
class LogTopic:
    """A topic of the embedded log."""

    address: str
    topic: str

    def last_write(self, marker: tuple[str, int]) -> int | None:
        """Give the number of the last write under a marker."""
        with Log(self.address) as log:
            return log.last_batch(marker)

    def headers(self, name: str) -> Iterator[bytes]:
        """Give the values of a header of all letters that are there."""
        with Log(self.address) as log:
            for partition, start in log.start_offsets(self.topic).items():
                for columns in log.read_columns(self.topic, partition, start):
                    for headers in columns.headers:
                        yield from (value for key, value in headers if key == name and value)

    def write(
        self, letters: list[ProducerRecord], marker: tuple[str, int] | None, number: int | None
    ) -> bool:
        """Write letters under a number; tell whether it was free."""
        with Log(self.address) as log:
            return not log.append({self.topic: letters}, marker=marker, batch=number).skipped


def place_of(text: str) -> Place:
    """Read a place such as ``file:./topics#visits-dead``; refuse one that is not there.

    >>> place_of("visits-dead")
    Traceback (most recent call last):
    ...
    thulawa.core.errors.ConfigurationError: dead_letters='visits-dead' names no topic of a log: \
write 'file:./topics#visits-dead'
    """
    address, _, topic = str(text).rpartition("#")
    if not address.startswith("file:") or not topic:
        raise ConfigurationError(
            f"dead_letters={text!r} names no topic of a log: write 'file:./topics#visits-dead'"
        )
    with Log(address) as log:
        log.describe(topic)
        return LogTopic(log.address, topic)  # the whole path: workers run in another folder


class DeadLetters:
    """The dead letters of one operator in one task."""

    def __init__(self, place: Place, name: str, signature: str, task: Task | None) -> None:
        self._place = place
        self._name = name
        self._task = task or Task()
        self._letters: list[ProducerRecord] = []
        self._marker: tuple[str, int] | None = None
        self._number: int | None = None
        self._origin = ""
        self.written: frozenset[int] = frozenset()
        if self._task.query is not None and self._task.batch is not None:
            operator = sha256(signature.encode()).hexdigest()[:16]
            self._marker = (f"{self._task.query}/{operator}", self._task.partition)
            self._origin = f"{self._marker[0]}/{self._task.partition}/{self._task.batch}/"
            self._begin(self._task.batch * _WRITES)

    def add(self, outcome: Outcome) -> None:
        """Set a row aside; some are written at a time, so that any number of them may fail."""
        self._letters.append(self._letter(outcome))
        if len(self._letters) >= _AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Write what was set aside; it is in the topic afterwards."""
        if not self._letters:
            return
        if not self._place.write(self._letters, self._marker, self._number):
            raise ThulawaError(
                f"{self._name}: another attempt at this batch has written dead letters meanwhile; "
                "this one must be run again to know them"
            )
        if self._number is not None:
            self._number += 1
        self._letters = []

    def _begin(self, first: int) -> None:
        assert self._marker is not None
        last = self._place.last_write(self._marker)
        self._number = first
        if last is not None and last >= first:
            self._number = last + 1
            self.written = frozenset(self._rows_written())

    def _rows_written(self) -> Iterator[int]:
        for origin in self._place.headers(ROW):
            text = origin.decode()
            if text.startswith(self._origin):
                yield int(text.removeprefix(self._origin))

    def _letter(self, outcome: Outcome) -> ProducerRecord:
        record = outcome.record
        row: Row = record.value
        values = row.as_dict()
        about = ErrorRecord(
            node=self._name,
            key=_key(record.key),
            value=_json(values),
            timestamp=0,
            headers=((ROW, f"{self._origin}{record.offset}".encode()),),
            **self._source(values, record.offset),
        )
        error = ProcessingError(str(outcome.error), node=self._name, offset=record.offset)
        error.__cause__ = outcome.error
        letter = DeadLetterQueue(self._place.topic).letter(error, about)
        return ProducerRecord(letter.key, letter.value, letter.headers)

    def _source(self, values: Mapping[str, Any], position: int) -> dict[str, Any]:
        """Say where the row came from: its record in a topic, else its place in the partition."""
        topic, partition, offset = map(values.get, ("topic", "partition", "offset"))
        if isinstance(topic, str) and isinstance(partition, int) and isinstance(offset, int):
            return {"topic": topic, "partition": partition, "offset": offset}
        return {"topic": None, "partition": self._task.partition, "offset": position}


def _key(key: Any) -> bytes | None:
    if key is None or isinstance(key, bytes):
        return key
    return key.encode() if isinstance(key, str) else _json(key)


def _json(value: Any) -> bytes:
    return json.dumps(_plain(value), ensure_ascii=False, default=_words).encode()


def _plain(value: Any) -> Any:
    """Leave nothing that JSON cannot say; no row is too odd to be set aside."""
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def _words(value: object) -> str:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, date | time) else str(value)
