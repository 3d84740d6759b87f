"""Errors of the embedded log alone, and how errors of SQLite become errors of `brokers.errors`.

::

    BrokerError
    └── LogError
        ├── InvalidRecord (ValueError)  refused before anything is written
        ├── LogBusy (TimeoutError)      another process held the log for too long
        ├── LogFailed (OSError)         the disk refused: full, read-only, unreachable
        ├── ForeignLog                  the file is not a log, or of a newer version
        └── DamagedLog                  the file's content is not what was written
"""

import sqlite3

from thulawa.brokers.errors import BrokerError

__all__ = [
    "DamagedLog",
    "ForeignLog",
    "InvalidRecord",
    "LogBusy",
    "LogError",
    "LogFailed",
    "translated",
]


class LogError(BrokerError):
    """The embedded log could not do what it was asked."""

    action = "see the cause"


class InvalidRecord(LogError, ValueError):
    """A record that a log cannot hold. Nothing of its batch was written."""

    action = "correct the record, or send it to a dead-letter topic"


class LogBusy(LogError, TimeoutError):
    """Another process held the write lock for longer than ``timeout``."""

    action = "try again; look for a writer that is stopped in a debugger, or raise timeout"


class LogFailed(LogError, OSError):
    """The file system refused: full, read-only, out of reach. Nothing was written."""

    action = "repair the file system, then try again: what was confirmed before is intact"


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
    """Return the error that a SQLite error stands for."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & _PRIMARY
    if code in _LOCKED:
        return LogBusy(f"{path} is locked by another process")
    if code in _DAMAGED:
        return DamagedLog(f"{path} is damaged: {error}")
    if code in _FOREIGN:
        return ForeignLog(f"{path} is not a SQLite database")
    return LogFailed(f"{path}: {error}")
