"""One connection to a log's database.

`transaction` takes SQLite's write lock at once (BEGIN IMMEDIATE), so a writer waits before it has
read anything, and what it has read cannot change. `snapshot` sees one committed state and blocks
nobody; snapshots are short, because the write-ahead log cannot shrink while one is open.

A commit is written to the write-ahead log without waiting for the disk: a killed process loses
nothing and breaks nothing, a power failure may lose the last commits but not tear one. With
``sync=True`` every commit waits for the disk.

A connection belongs to one process: after a fork the child opens its own. Threads may share one.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import RLock

from thulawa.brokers.embedded.schema import check_version, current, roll_back, translated
from thulawa.errors import UnknownTopic

_CHECKPOINT_PAGES = 4_000  # 16 MB; each checkpoint waits for the disk
_FREE_PAGES = 2_500  # 10 MB
_inherited: list[sqlite3.Connection] = []  # a forked child must neither use nor close them


class Database:
    """A connection that is opened when first needed, and again when the log was replaced."""

    def __init__(self, folder: Path, *, timeout: float = 30.0, sync: bool = False) -> None:
        self.folder = folder
        self._timeout = timeout
        self._sync = sync
        self._turn = RLock()
        self._connection: sqlite3.Connection | None = None
        self._path = folder
        self._process = 0

    def transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        """Run the block with the write lock; all of it is committed, or none of it."""
        return self._within("BEGIN IMMEDIATE", "COMMIT")

    def snapshot(self) -> AbstractContextManager[sqlite3.Connection]:
        """Run the block on one committed state."""
        return self._within("BEGIN", "ROLLBACK")

    @contextmanager
    def _within(self, begin: str, end: str) -> Iterator[sqlite3.Connection]:
        """Run the block between two statements. These blocks do not nest."""
        with self._turn, self._translated():
            connection = self._open()
            roll_back(connection)  # Ctrl-C may have come before the last one was left
            try:
                connection.execute(begin)
                yield connection
                connection.execute(end)
            finally:
                roll_back(connection)

    def version(self) -> int:
        """Return a number that changes when another connection has committed something."""
        with self._turn, self._translated():
            (version,) = self._open().execute("PRAGMA data_version").fetchone()
            return int(version)

    def give_back_space(self) -> None:
        """Return unused pages to the file system, some at a time, while most are unused."""
        with self._turn, self._translated():
            connection = self._open()
            while _is_mostly_free(connection):
                # a script, because execute() would take one step of it: one page
                connection.executescript(f"PRAGMA incremental_vacuum({_FREE_PAGES})")

    def close(self) -> None:
        """Close the connection; it opens again when it is used again."""
        with self._turn:
            connection, self._connection = self._connection, None
            if connection is not None and self._process == os.getpid():
                connection.close()

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None:
            if self._process == os.getpid() and self._path.exists():
                return self._connection
            if self._process == os.getpid():
                self._connection.close()
            else:
                _inherited.append(self._connection)
            self._connection = None
        path = current(self.folder)
        if path is None:
            raise UnknownTopic(f"there is no log in {self.folder} yet")
        self._connection = self._connect(path)
        self._path, self._process = path, os.getpid()
        return self._connection

    def _connect(self, path: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"{path.as_uri()}?mode=rw",
            uri=True,
            timeout=self._timeout,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            check_version(connection, path)
            connection.execute(f"PRAGMA synchronous = {'FULL' if self._sync else 'NORMAL'}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
            connection.execute("PRAGMA journal_size_limit = 67108864")
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise translated(error, self._path) from error


def _is_mostly_free(connection: sqlite3.Connection) -> bool:
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    # otherwise new records will use them, and returning them costs more than it saves
    return bool(free > max(_FREE_PAGES, pages // 2))
