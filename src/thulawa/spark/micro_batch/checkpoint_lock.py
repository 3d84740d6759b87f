"""Exclusive ownership of a checkpoint folder: one process at a time runs an application on it.

The owner holds an operating-system lock (``flock``) on a file in the folder and writes its identity
there. The system releases the lock when the process ends, however it ends, so on the same host
another process can take over at once. Another host that mounts the folder may not see such locks:
there an owner proves that it is alive by a *heartbeat*, a counter that it increments every few
seconds. A process that wants to take over watches the counter for `LEASE` seconds. Clocks of
different hosts are never compared.
"""

import fcntl
import json
import os
import socket
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from thulawa.errors import ConfigurationError, StateError

LEASE = 10.0  # seconds without a heartbeat after which an owner on another host counts as gone
_BEAT = 2.0  # seconds between heartbeats
_POLL = 0.25
_SIZE = 1_024  # bytes of the file, which is always written in one piece
_FILE = "owner.lock"

_running: set[str] = set()  # the applications of this process, with their brokers
_guard = threading.Lock()


@dataclass(frozen=True, slots=True)
class LockOwner:
    """The process that runs an application on a checkpoint."""

    host: str
    machine: str  # boot id: equal for processes that see each other's locks
    pid: int
    started: str
    beat: int = 0

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, started {self.started}"


class CheckpointLock:
    """The lock of one checkpoint folder; `acquire` it before reading anything there.

    ``application`` is what else a process owns only once, whatever its checkpoint: an application
    and its broker.
    """

    def __init__(self, root: Path, application: str | None = None) -> None:
        self._root = root
        self._path = root / _FILE
        self._application = application
        self._file: int | None = None
        self._stopping = threading.Event()
        self._heart: threading.Thread | None = None

    def acquire(self) -> None:
        """Become the owner; raise `StateError` with host and pid if there is a live owner.

        Raise `ConfigurationError` if the application runs in this process.
        """
        with _guard:
            if self._application in _running:
                raise ConfigurationError(
                    f"{self._application} runs in this process already: stop it before "
                    "starting it again, or give the other one its own application_id"
                )
            if self._application is not None:
                _running.add(self._application)
        try:
            self._lock_folder()
        except BaseException:
            _running.discard(self._application or "")
            raise

    def _lock_folder(self) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        file, is_exclusive = self._opened()
        try:
            owner = _read(self._path)
            gone = owner is None or (is_exclusive and owner.machine == _machine())
            if owner is not None and not gone and self._beats(owner):
                raise self._in_use(owner)
            self._own(file)
        except BaseException:
            os.close(file)
            raise

    def release(self) -> None:
        """Release the lock if it is held, and remove the folder if it is empty."""
        if self._file is None:
            return
        self._stopping.set()
        if self._heart is not None:
            self._heart.join()
        with suppress(OSError):  # the disk may be gone
            if _is_same(self._file, self._path):
                self._path.unlink()
        os.close(self._file)
        self._file = None
        with suppress(OSError):  # it holds a checkpoint
            self._root.rmdir()
        _running.discard(self._application or "")

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _opened(self) -> tuple[int, bool]:
        """Return the open file, and whether the file system supports locks."""
        while True:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
                raise self._in_use(_read(self._path)) from None
            except OSError:  # no locks on this file system: only heartbeats count
                return file, False
            if _is_same(file, self._path):
                return file, True
            os.close(file)  # its owner has removed it meanwhile

    def _in_use(self, owner: LockOwner | None) -> StateError:
        who = "a process that is starting" if owner is None else str(owner)
        return StateError(
            f"the checkpoint {self._root} is in use by {who}: stop it first, or give this "
            "application an application_id and a checkpoint of its own"
        )

    def _beats(self, owner: LockOwner) -> bool:
        """Return whether the owner's heartbeat changes within the time of a lease."""
        deadline = time.monotonic() + LEASE
        while time.monotonic() < deadline:
            time.sleep(_POLL)
            if (now := _read(self._path)) is not None and now != owner:
                return True
        return False

    def _own(self, file: int) -> None:
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        owner = LockOwner(socket.gethostname(), _machine(), os.getpid(), started)
        _write(file, owner)
        self._file = file
        self._stopping.clear()
        self._heart = threading.Thread(
            target=self._beat, args=(file, owner), name="checkpoint-lock", daemon=True
        )
        self._heart.start()

    def _beat(self, file: int, owner: LockOwner) -> None:
        while not self._stopping.wait(_BEAT):
            owner = replace(owner, beat=owner.beat + 1)
            with suppress(OSError):  # a full disk ends the query anyway
                _write(file, owner)


def _machine() -> str:
    """Return the boot id of the host, which all its containers share."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return socket.gethostname()


def _read(path: Path) -> LockOwner | None:
    try:
        return LockOwner(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # removed, or not written yet
        return None


def _write(file: int, owner: LockOwner) -> None:
    os.pwrite(file, json.dumps(asdict(owner)).encode().ljust(_SIZE), 0)


def _is_same(file: int, path: Path) -> bool:
    """Return whether a path still names an open file."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file), path.stat())
    return False
