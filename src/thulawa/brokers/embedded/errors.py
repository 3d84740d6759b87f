"""What the embedded log raises.

::

    ThulawaError
    └── LogError
        ├── UnknownTopic (LookupError)     no such topic or partition
        ├── TopicExists                    it exists with other settings
        ├── InvalidRecord (ValueError)     refused before anything is written
        ├── OffsetOutOfRange (LookupError) retention has removed it, or it is yet to be written
        ├── LogBusy (TimeoutError)         another process held the log for too long
        ├── LogFailed (OSError)            the disk refused: full, read-only, unreachable
        ├── ForeignLog                     the file is not a log, or of a newer version
        └── DamagedLog                     the file's content is not what was written

Names and options that cannot work are a `ConfigurationError`, as everywhere.
"""

import sqlite3
from functools import partial

from thulawa.core.errors import ThulawaError

__all__ = [
    "DamagedLog",
    "ForeignLog",
    "InvalidRecord",
    "LogBusy",
    "LogError",
    "LogFailed",
    "OffsetOutOfRange",
    "TopicExists",
    "UnknownTopic",
    "translated",
]


class LogError(ThulawaError):
    """The log could not do what it was asked. Carries where, and what to do about it."""

    action = "see the cause"

    def __init__(
        self,
        message: str,
        *,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
    ) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset

    def __str__(self) -> str:
        places = ("topic", self.topic), ("partition", self.partition), ("offset", self.offset)
        where = ", ".join(f"{name} {place}" for name, place in places if place is not None)
        return f"{super().__str__()}{f' ({where})' if where else ''}; {self.action}"


class UnknownTopic(LogError, LookupError):
    """There is no such topic, or the topic has no such partition."""

    action = "make it with create_topic(), or see topics() and describe() for what there is"


class TopicExists(LogError):
    """The topic exists already, with other settings than those asked for."""

    action = (
        "ask for the settings that describe() shows; delete_topic() if nobody needs its records"
    )


class InvalidRecord(LogError, ValueError):
    """A record that a log cannot hold. Nothing of its batch was written."""

    action = "mend the record or send it to a dead letter topic"


class OffsetOutOfRange(LogError, LookupError):
    """The offset is not in the log: removed by retention, or not yet written.

    ``start`` and ``end`` are the bounds of the partition: records in [start, end) exist.
    """

    action = "seek to an offset between its start and its end; raise retention to keep more"

    def __init__(self, *, topic: str, partition: int, offset: int, start: int, end: int) -> None:
        self.start = start
        self.end = end
        message = f"the log holds the offsets {start} to {end} (not included)"
        super().__init__(message, topic=topic, partition=partition, offset=offset)

    def __reduce__(self) -> tuple[object, ...]:
        # errors are pickled by their positional arguments, of which this one has none
        return partial(type(self), **self.__dict__), ()


class LogBusy(LogError, TimeoutError):
    """Another process held the write lock for longer than ``timeout``."""

    action = "try again; look for a writer that is stopped in a debugger, or raise timeout"


class LogFailed(LogError, OSError):
    """The file system refused: full, read-only, out of reach. Nothing was written."""

    action = "mend the file system, then try again: what was confirmed before is intact"


class ForeignLog(LogError):
    """The file is not a Thulawa log, or one that a newer version wrote."""

    action = "point the address at another folder, or upgrade thulawa; the file is left as it is"


class DamagedLog(LogError):
    """The log holds something that was never written to it."""

    action = (
        "restore the folder from a copy, or move it away and start a new one; "
        "`sqlite3 log.sqlite .recover` saves what can be saved"
    )


_LOCKED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_DAMAGED = {sqlite3.SQLITE_CORRUPT}
_FOREIGN = {sqlite3.SQLITE_NOTADB}
_PRIMARY = 0xFF  # the low byte of an extended result code


def translated(error: sqlite3.Error, path: object) -> LogError:
    """Give the error of this tree that a SQLite error stands for."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & _PRIMARY
    if code in _LOCKED:
        return LogBusy(f"{path} is locked by another process")
    if code in _DAMAGED:
        return DamagedLog(f"{path} is damaged: {error}")
    if code in _FOREIGN:
        return ForeignLog(f"{path} is not a SQLite database")
    return LogFailed(f"{path}: {error}")
