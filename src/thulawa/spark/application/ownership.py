"""Ensure that an application runs only once, in one process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from thulawa.errors import ConfigurationError
from thulawa.spark.micro_batch.checkpoint_lock import CheckpointLock

__all__ = ["Ownership"]

_running: set[tuple[str, str]] = set()  # the applications of this process, with their brokers
_guard = threading.Lock()


class Ownership:
    """Exclusive ownership of an application and its checkpoint."""

    def __init__(self, application_id: str, broker: str, checkpoint: Path) -> None:
        self._application = (application_id, broker)
        self._lock = CheckpointLock(checkpoint)
        self._held = False

    def acquire(self) -> None:
        """Acquire ownership; raise if the application runs, here or in another process."""
        application_id, broker = self._application
        with _guard:
            if self._application in _running:
                raise ConfigurationError(
                    f"{application_id!r} at {broker} runs in this process already: stop it before "
                    "starting it again, or give the other one its own application_id"
                )
            _running.add(self._application)
        try:
            self._lock.acquire()
        except BaseException:
            _running.discard(self._application)
            raise
        self._held = True

    def release(self) -> None:
        """Release ownership if it is held."""
        if self._held:
            self._held = False
            self._lock.release()
            _running.discard(self._application)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold ownership while the context lasts."""
        self.acquire()
        try:
            yield
        finally:
            self.release()
