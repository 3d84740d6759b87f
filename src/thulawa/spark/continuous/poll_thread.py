"""The thread of a host that reads its partitions."""

import threading
import time
from collections import deque
from collections.abc import Callable

from thulawa.brokers.port import PolledRecords, StreamConsumer
from thulawa.core.types import TopicPartition

_POLL_RECORDS = 5_000
_POLL_SECONDS = 0.1
_POLLED_AHEAD = 2  # polls that wait for the loop, which counts none of their records yet
_HOLD_SECONDS = 0.25  # without reading, before full partitions are paused


class PollThread:
    """Reads the partitions of a host on a thread of its own.

    While some partitions have enough buffered records, it first stops reading for a moment, then
    pauses these and reads the others. librdkafka discards what it has fetched of a partition that
    is paused, so a pause costs a fetch, and none is needed while the tasks keep up.
    """

    def __init__(self, consumer: StreamConsumer, arrived: Callable[[], None]) -> None:
        self._consumer = consumer
        self._arrived = arrived
        self._polled: deque[PolledRecords] = deque()
        self._full: frozenset[TopicPartition] = frozenset()  # set by the event loop's thread
        self._hold_until = 0.0  # no pause before
        self._paused: frozenset[TopicPartition] = frozenset()
        self._room = threading.Event()
        self._stopping = threading.Event()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="thulawa-poll", daemon=True)
        self._thread.start()

    def take(self) -> list[PolledRecords]:
        """Remove and return what has been polled; raise the error that ended the thread."""
        if self.error is not None:
            raise self.error
        taken = []
        while self._polled:
            taken.append(self._polled.popleft())
        self._room.set()
        return taken

    @property
    def full(self) -> frozenset[TopicPartition]:
        """The partitions that have enough buffered records."""
        return self._full

    def set_full(self, partitions: frozenset[TopicPartition], *, waiting: bool) -> None:
        """Set the partitions that have enough buffered records.

        With ``waiting`` the tasks cannot go on without records of the others.
        """
        if waiting:
            self._hold_until = 0.0
        elif not self._full:
            self._hold_until = time.monotonic() + _HOLD_SECONDS
        self._full = partitions
        self._room.set()

    def stop(self) -> None:
        """End the thread and close its consumer."""
        self._stopping.set()
        self._room.set()
        self._thread.join(timeout=10.0)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._room.clear()
                full = self._full
                if not full >= self._paused:
                    self._pause(full & self._paused)
                held = self._hold_until - time.monotonic()
                if len(self._polled) > _POLLED_AHEAD or (full != self._paused and held > 0):
                    self._room.wait(held if held > 0 else _POLL_SECONDS)
                    continue
                self._pause(full)
                polled = self._consumer.poll(_POLL_RECORDS, _POLL_SECONDS)
                if polled:
                    self._polled.extend(polled)
                    self._arrived()
        except BaseException as error:  # noqa: BLE001 raised by the loop
            self.error = error
            self._arrived()
        finally:
            self._consumer.close()

    def _pause(self, partitions: frozenset[TopicPartition]) -> None:
        if partitions != self._paused:
            self._consumer.pause(partitions - self._paused)
            self._consumer.resume(self._paused - partitions)
            self._paused = partitions
