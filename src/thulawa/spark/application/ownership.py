"""An application runs once: in one process, and there once."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from thulawa.core.errors import ConfigurationError
from thulawa.spark.micro_batch.checkpoint_lock import CheckpointLock

__all__ = ["Ownership"]

_running: set[tuple[str, str]] = set()  # the applications of this process, with their brokers
_guard = threading.Lock()


class Ownership:
    """The right to run an application, and to write into its checkpoint."""

    def __init__(self, application_id: str, broker: str, checkpoint: Path) -> None:
        self._application = (application_id, broker)
        self._lock = CheckpointLock(checkpoint)
        self._held = False

    def acquire(self) -> None:
        """Acquire the right; raise where the application runs, here or in another process."""
        application_id, broker = self._application
        with _guard:
            if self._application in _running:
                raise ConfigurationError(
                    f"{application_id!r} at {broker} runs in this process already: stop it before "
                    "it is started again, or give the other one an application_id of its own"
                )
            _running.add(self._application)
        try:
            self._lock.acquire()
        except BaseException:
            _running.discard(self._application)
            raise
        self._held = True

    def release(self) -> None:
        """Release the right, where it is held."""
        if self._held:
            self._held = False
            self._lock.release()
            _running.discard(self._application)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the right while the context lasts."""
        self.acquire()
        try:
            yield
        finally:
            self.release()
