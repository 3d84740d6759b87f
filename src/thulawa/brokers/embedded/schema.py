"""The log on disk: a folder with one SQLite database, and a file that names it.

One database holds all topics of a log. With a database for each topic a crash could tear a batch
that goes to several topics, and a repeated batch that routes a record differently would lose it:
SQLite has no transactions across WAL databases. The lock is held for about 1 ms per 10,000 records,
and four writers share one database at the same total rate as four databases.

The database has a new name whenever a log is created (``log-4f1d….sqlite``), and ``CURRENT`` names
it. So a process that still has a removed log open can neither write into the new one nor remove its
write-ahead log. The database is complete before CURRENT names it, and CURRENT appears atomically: a
killed process leaves nothing but an unused file, and of two that create a log at once one wins.
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from uuid import uuid4

from thulawa.errors import DamagedLog, ForeignLog, LogBusy, LogError, LogFailed

# A batch's row id is its partition's id and the offset of its first record: one integer key, in
# which a partition is a range and appending is at the range's end. 2**40 offsets a partition.
PARTITION_BITS = 40
OFFSET_MASK = (1 << PARTITION_BITS) - 1

_APPLICATION = 0x54484C57  # "THLW"
_VERSION = 2

_TABLES = """
CREATE TABLE topics (
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used twice, nor are those of partitions
    name TEXT NOT NULL UNIQUE,
    compact INTEGER NOT NULL,
    seconds REAL, bytes INTEGER, records INTEGER, tombstones REAL NOT NULL
);
CREATE TABLE partitions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    topic INTEGER NOT NULL,
    number INTEGER NOT NULL,
    start_offset INTEGER NOT NULL DEFAULT 0,
    end_offset INTEGER NOT NULL DEFAULT 0,
    cleaned_offset INTEGER NOT NULL DEFAULT 0,  -- the end when cleaning was last begun
    cleaned_records INTEGER NOT NULL DEFAULT 0,  -- how many it left
    UNIQUE (topic, number)
);
CREATE TABLE batches (
    id INTEGER PRIMARY KEY,
    last INTEGER NOT NULL,  -- the offset of its last record
    count INTEGER NOT NULL,
    newest INTEGER NOT NULL,  -- the highest timestamp
    bytes INTEGER NOT NULL,
    body BLOB NOT NULL
);
CREATE TABLE commits (
    topic INTEGER, consumer_group TEXT, partition INTEGER, next_offset INTEGER NOT NULL,
    PRIMARY KEY (topic, consumer_group, partition)
) WITHOUT ROWID;
CREATE TABLE markers (
    writer TEXT, task INTEGER, batch INTEGER NOT NULL,
    layout TEXT NOT NULL DEFAULT '',  -- of the tasks that wrote the batch
    PRIMARY KEY (writer, task)
) WITHOUT ROWID;
CREATE TABLE compactions (
    partition INTEGER, end_offset INTEGER, finished INTEGER NOT NULL,
    PRIMARY KEY (partition, end_offset)
) WITHOUT ROWID;
CREATE TABLE doomed (partition INTEGER PRIMARY KEY);  -- of deleted topics, batches still there
"""

# from a format to the next
_MIGRATIONS = {1: "ALTER TABLE markers ADD COLUMN layout TEXT NOT NULL DEFAULT ''"}


def current(folder: Path) -> Path | None:
    """Return the database of the log in this folder, if there is one."""
    pointer = folder / "CURRENT"
    try:
        name = pointer.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return None
    except (NotADirectoryError, UnicodeDecodeError) as error:
        raise ForeignLog(f"{pointer} cannot be the pointer of a log") from error
    if not name.startswith("log-") or "/" in name or not (folder / name).is_file():
        raise ForeignLog(f"{pointer} names {name[:80]!r}, which is not a log beside it")
    return folder / name


def create(folder: Path) -> None:
    """Create a log in this folder unless there is one."""
    folder.mkdir(parents=True, exist_ok=True)
    token = uuid4().hex
    database, pointer = folder / f"log-{token}.sqlite", folder / f"CURRENT-{token}"
    _write_tables(database)
    pointer.write_text(database.name, encoding="ascii")
    try:
        (folder / "CURRENT").hardlink_to(pointer)
    except FileExistsError:
        database.unlink()
    finally:
        pointer.unlink()


def _write_tables(path: Path) -> None:
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            # before the first table, so that cleaning can give space back to the file system
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(f"BEGIN; {_TABLES} COMMIT;")
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            connection.execute(f"PRAGMA user_version = {_VERSION}")
    except sqlite3.Error as error:
        raise translated(error, path) from error


def check_version(connection: sqlite3.Connection, path: Path) -> None:
    """Raise `ForeignLog` if a database is no log or of a newer version; migrate an older one."""
    # asked of SQLite: closing a file opened beside it would drop the process's locks on it
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != _APPLICATION:
        raise ForeignLog(f"{path} is not a Thulawa log")
    version = _version(connection)
    if version in _MIGRATIONS:
        version = _migrated(connection)
    if version != _VERSION:
        raise ForeignLog(f"{path} has format {version}, this thulawa reads format {_VERSION}")


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def _migrated(connection: sqlite3.Connection) -> int:
    """Migrate an older log in one transaction; return the format it then has."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        while (version := _version(connection)) in _MIGRATIONS:  # another process may have begun
            connection.execute(_MIGRATIONS[version])
            connection.execute(f"PRAGMA user_version = {version + 1}")
        connection.execute("COMMIT")
    finally:
        roll_back(connection)
    return version


def roll_back(connection: sqlite3.Connection) -> None:
    """Roll back the transaction, if one is open."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def translated(error: sqlite3.Error, path: object) -> LogError:
    """Return the error that a SQLite error stands for, by its primary result code."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return LogBusy(f"{path} is locked by another process")
    if code == sqlite3.SQLITE_CORRUPT:
        return DamagedLog(f"{path} is damaged: {error}")
    if code == sqlite3.SQLITE_NOTADB:
        return ForeignLog(f"{path} is not a SQLite database")
    return LogFailed(f"{path}: {error}")
