"""The local copy of a task's stores: a folder that one process owns, and what it stands for.

The changelogs are the truth; a local copy only saves reading them from the beginning. Its
*position*, written with the entries in one batch, has an offset for each changelog: the copy has
every committed record below it, and perhaps later ones, which a replay from there writes again.
The offset is the end of the changelog as it was *before* a commit that succeeded, and is written
after it. So a crash between the two loses nothing; nor can a process that was frozen meanwhile
write an offset beyond the changes it knows: its commit would have been fenced.

A copy is discarded, with a line in the log, if it is damaged, or of another application or store,
if its changelog was created again or is shorter, or if so much time has passed that the changelog
may have lost deletions since (`_MAX_AGE_SECONDS`).
"""

import fcntl
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from itertools import count
from pathlib import Path

import msgspec

from thulawa.brokers.port import Broker
from thulawa.core.types import Offsets, TopicPartition
from thulawa.errors import StateError
from thulawa.spark.continuous.continuous_program import ContinuousProgram, TaskId
from thulawa.state.codec import ColumnCodec
from thulawa.state.rocksdb import CachedEntries, DatabaseMemory, LocalDatabase

_log = logging.getLogger("thulawa.streams")
_keys = ColumnCodec()

_POSITION = b"\0\0position"  # stores are numbered from 1
_FORMAT = 1
_MAX_AGE_SECONDS = 12 * 3600.0  # brokers keep deletions for a day
_UNOWNED_SECONDS = 600.0  # after which a folder that nobody owns is removed
_WRITE_SECONDS = 2.0  # between writes to the database
_RESTORED_AT_ONCE = 10_000

Progress = Callable[[str, int, int], None]
"""Called with a store, the offsets that have been restored and all of them."""


class LocalPosition(msgspec.Struct, frozen=True, array_like=True):
    """What a local copy stands for: next offsets by changelog, at a time in seconds."""

    format: int
    application: str
    task: str
    topic_ids: dict[str, str]
    offsets: dict[str, int]
    time: float


class TaskFolder:
    """A folder for the local state of a task, owned by this process until it is closed."""

    def __init__(self, base: Path, task: TaskId) -> None:
        base.mkdir(parents=True, exist_ok=True, mode=0o700)
        for number in count():
            self.path = base / (str(task) if number == 0 else f"{task}.{number}")
            lock = _locked(self.path)
            if lock is not None:
                self._lock = lock
                break
            _log.warning("%s is in use by another process", self.path)
        self.database = self.path / "db"

    def touch(self) -> None:
        """Record that the folder is in use."""
        with suppress(OSError):
            os.utime(self.path / "lock")

    def clear(self) -> None:
        """Remove the database."""
        shutil.rmtree(self.database, ignore_errors=True)

    def close(self) -> None:
        """Give up the folder, with what is in it."""
        self.touch()
        os.close(self._lock)


def _locked(folder: Path) -> int | None:
    """Lock a folder; return the descriptor that holds the lock, or None if another one does."""
    while True:
        folder.mkdir(exist_ok=True)
        path = folder / "lock"
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            continue  # removed since
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), path.stat()):
                return lock
        except BlockingIOError:
            os.close(lock)
            return None
        except FileNotFoundError:
            pass
        os.close(lock)  # of a file that was removed since


def remove_unowned(base: Path, *, older_than: float = _UNOWNED_SECONDS) -> list[Path]:
    """Remove the folders of tasks that nobody has owned for some seconds; return them."""
    removed = []
    for folder in base.iterdir() if base.is_dir() else ():
        with suppress(OSError):
            if time.time() - (folder / "lock").stat().st_mtime < older_than:
                continue
            lock = _locked(folder)
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)
                removed.append(folder)
    return removed


def state_folder(program: ContinuousProgram) -> Path:
    """Return the folder of an application's local state on this machine."""
    base = program.state_dir or f"{tempfile.gettempdir()}/thulawa-state-{os.getuid()}"
    broker = sha256(program.broker.address.encode()).hexdigest()[:8]
    return Path(base) / f"{program.application_id}-{broker}"


class LocalState:
    """The stores of one task in its local database."""

    def __init__(self, program: ContinuousProgram, task: TaskId, memory: DatabaseMemory) -> None:
        self._program = program
        self._task = task
        self._memory = memory
        specs = program.plan.topology.stores
        self._codecs = {
            store: ColumnCodec(specs[store].value_serde)
            for store in program.plan.parts[task.group].group.stores
        }
        self.changelogs = {store: program.changelog(store) for store in self._codecs}
        self._topic_ids = program.broker.topic_ids(*self.changelogs.values())
        self._folder = TaskFolder(state_folder(program), task)
        try:
            self._database, self._offsets = self._open()
        except BaseException:
            self._folder.close()
            raise
        self.entries = {
            store: CachedEntries(self._database, number, codec)
            for number, (store, codec) in enumerate(self._codecs.items(), 1)
        }

    def _open(self) -> tuple[LocalDatabase, dict[str, int]]:
        """Open the local copy, or a new one if it cannot be used."""
        folder = self._folder
        exists = folder.database.exists()
        try:
            database = LocalDatabase(folder.database, self._memory)
        except StateError as error:
            if not exists:
                raise
            return self._discarded(str(error))
        if not exists:
            return database, {}
        try:
            found = database.get(_POSITION)
            position = None if found is None else msgspec.msgpack.decode(found, type=LocalPosition)
            why = self._unusable(position)
        except (StateError, msgspec.DecodeError) as error:
            position, why = None, f"it is damaged: {error}"
        if why is None and position is not None:
            return database, position.offsets
        database.close()
        return self._discarded(why or "it is damaged")

    def _discarded(self, why: str) -> tuple[LocalDatabase, dict[str, int]]:
        _log.warning(
            "the local state of task %s in %s is discarded and restored from its changelogs: %s",
            self._task, self._folder.path, why,
        )  # fmt: skip
        self._folder.clear()
        return LocalDatabase(self._folder.database, self._memory), {}

    def _unusable(self, position: LocalPosition | None) -> str | None:
        """Return why a local copy cannot be used, or None."""
        if position is None:
            return "it is not complete"
        broker, number = self._program.broker, self._task.number
        application, task = self._identity
        expected = {
            "it was written by another version of Thulawa": position.format == _FORMAT,
            "it is of another application": position.application == application,
            "it is of another task": position.task == task,
            "it has other stores": set(position.offsets) == set(self.changelogs.values()),
            "a changelog topic has been created again": position.topic_ids == self._topic_ids,
        }
        for why, holds in expected.items():
            if not holds:
                return why
        topics = list(position.offsets)
        starts, ends = broker.start_offsets(*topics), broker.end_offsets(*topics, committed=False)
        age = time.time() - position.time
        for topic, offset in position.offsets.items():
            start, end = starts[topic][number], ends[topic][number]
            if not start <= offset <= end:
                return f"{topic!r} has the offsets from {start} to {end}, and it is at {offset}"
            if offset < end and not 0 <= age < _MAX_AGE_SECONDS:
                return f"it is {age / 3600:.0f} hours old, and deletions may be missing"
        return None

    @property
    def _identity(self) -> tuple[str, str]:
        return self._program.application_id, str(self._task)

    # --- restore

    def restore(self, progress: Progress, stopped: Callable[[], bool]) -> int:
        """Read the rest of the changelogs; return the number of records.

        Stop early, with an incomplete copy, when ``stopped`` returns true.
        """
        restored, now = 0, time.time()
        changed = False
        for store, topic in self.changelogs.items():
            broker, place = self._program.broker, TopicPartition(topic, self._task.number)
            end = broker.end_offsets(topic)[topic][place.partition]
            start = self._offsets.get(topic)
            if start is None:
                start = broker.start_offsets(topic)[topic][place.partition]
            entries, total = self.entries[store], end - start
            progress(store, 0, total)
            for last, batch in _batches(broker, place, start, end):
                if stopped():
                    return restored
                self._database.write(
                    (entries.restored(_keys.decode_one(key), data) for key, data in batch),
                    logged=False,
                )
                restored += len(batch)
                changed = True
                progress(store, last + 1 - start, total)
            self._offsets[topic] = max(end, start)
            progress(store, total, total)
        if changed:
            self._database.flush()
        self._database.write([self._position(self._offsets, now)])
        for entries in self.entries.values():
            entries.open()
        return restored

    def _position(self, offsets: Mapping[str, int], now: float) -> tuple[bytes, bytes]:
        application, task = self._identity
        position = LocalPosition(_FORMAT, application, task, self._topic_ids, dict(offsets), now)
        return _POSITION, msgspec.msgpack.encode(position)

    # --- commits

    def raise_failed(self) -> None:
        """Raise the first error of the disk."""
        if self._database.error is not None:
            raise self._database.error

    def write(self, ends: Offsets, now: float) -> None:
        """Write what has been committed, and the ends of the changelogs before that commit."""
        self._offsets = {
            topic: max(ends[topic][self._task.number], self._offsets[topic])
            for topic in self.changelogs.values()
        }
        self._database.write(self._changes(now))
        for entries in self.entries.values():
            entries.finish_write()
        self._folder.touch()

    def _changes(self, now: float) -> Iterator[tuple[bytes, bytes | None]]:
        for entries in self.entries.values():
            yield from entries.start_write()
        yield self._position(self._offsets, now)

    def close(self) -> None:
        """Close the database; what is not written is read from the changelogs again.

        A database that could not be read is removed: it would fail again.
        """
        self._database.close()
        error = self._database.error
        if error is not None and "No space left" not in str(error):
            _log.warning("the local state in %s is removed: %s", self._folder.path, error)
            self._folder.clear()
        self._folder.close()


def _batches(
    broker: Broker, place: TopicPartition, start: int, end: int
) -> Iterator[tuple[int, list[tuple[bytes, bytes | None]]]]:
    """Yield the last offset and the records of batches of a changelog."""
    batch: list[tuple[bytes, bytes | None]] = []
    last = start - 1
    if start >= end:
        return
    for record in broker.read({place: (start, end)}):
        assert record.key is not None
        batch.append((record.key, record.value))
        last = record.offset
        if len(batch) >= _RESTORED_AT_ONCE:
            yield last, batch
            batch = []
    if batch:
        yield last, batch


class HostState:
    """The local state of all tasks of a host, within a bound of memory.

    Half of the memory is for entries in use, half for the databases.
    """

    def __init__(self, program: ContinuousProgram) -> None:
        self._program = program
        self._limit = program.state_memory // 2
        self._memory: DatabaseMemory | None = None
        self._states: list[LocalState] = []
        self._ends: Offsets | None = None
        self._asked = 0.0
        self._next_write = time.monotonic() + _WRITE_SECONDS
        # not before all hosts of this machine have taken theirs
        self._next_removal = time.monotonic() + _UNOWNED_SECONDS

    def open(self, task: TaskId) -> LocalState:
        """Open the local state of a task."""
        if self._memory is None:
            self._memory = DatabaseMemory(self._program.state_memory - self._limit)
        state = LocalState(self._program, task, self._memory)
        self._states.append(state)
        return state

    def before_commit(self) -> None:
        """Prepare a write, if one is due; raise if a disk has failed.

        What has been read or changed since may be wrong then: it must not be committed.
        """
        for state in self._states:
            state.raise_failed()
        self._ends = None
        if time.monotonic() >= self._next_write or self._unwritten_bytes() > self._limit / 4:
            topics = {topic for state in self._states for topic in state.changelogs.values()}
            if topics:
                self._asked = time.time()
                self._ends = self._program.broker.end_offsets(*topics, committed=False)

    def after_commit(self) -> None:
        """Write what has been committed, if that is due."""
        if self._ends is not None:
            for state in self._states:
                state.write(self._ends, self._asked)
            self._next_write = time.monotonic() + _WRITE_SECONDS
            if time.monotonic() >= self._next_removal:
                self._next_removal = time.monotonic() + _UNOWNED_SECONDS
                base = state_folder(self._program)
                threading.Thread(target=remove_unowned, args=(base,), daemon=True).start()

    def write_next(self) -> None:
        """Write with the next commit, whenever it is."""
        self._next_write = 0.0

    def _entries(self) -> Iterator[CachedEntries]:
        return (entries for state in self._states for entries in state.entries.values())

    def _unwritten_bytes(self) -> float:
        return sum(entries.unwritten * entries.entry_bytes for entries in self._entries())

    def evict(self) -> None:
        """Evict entries from memory where there are too many."""
        held = sum(entries.held * entries.entry_bytes for entries in self._entries())
        if held > self._limit:
            share = 1 - self._limit * 0.75 / held
            for entries in self._entries():
                entries.evict(round(entries.held * share) + 1)

    def close(self) -> None:
        """Close the databases."""
        for state in self._states:
            state.close()
        self._states = []
