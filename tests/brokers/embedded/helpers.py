"""Short ways to write and to look."""

import sqlite3
from collections.abc import Iterable
from pathlib import Path

from thulawa.brokers.embedded import ConsumerRecord, Log, ProducerRecord


class Clock:
    """Seconds since 1970, moved by hand."""

    def __init__(self, seconds: float = 1_000_000.0) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds


def keyed(*pairs: tuple[str, str | None], timestamp: int | None = None) -> list[ProducerRecord]:
    """Make records from keys and values; None is a tombstone."""
    return [
        ProducerRecord(key.encode(), None if value is None else value.encode(), (), timestamp)
        for key, value in pairs
    ]


def numbered(numbers: Iterable[int], **more: int) -> list[ProducerRecord]:
    return [ProducerRecord(None, b"%d" % number, **more) for number in numbers]  # type: ignore[arg-type]


def records(log: Log, topic: str, partition: int = 0) -> list[ConsumerRecord]:
    """Give everything that retention has left of a partition."""
    return list(log.read(topic, partition, log.start_offsets(topic)[partition]))


def values(log: Log, topic: str, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in records(log, topic, partition)]


def database(log: Log) -> Path:
    folder = Path(log.address.removeprefix("file:"))
    return folder / (folder / "CURRENT").read_text()


def ask(log: Log, question: str) -> list[tuple[object, ...]]:
    """Look into the database from outside."""
    connection = sqlite3.connect(database(log))
    try:
        return connection.execute(question).fetchall()
    finally:
        connection.close()
