"""Visits that arrive in a topic at a steady rate."""

import json
import threading
import time
from random import Random

from thulawa.brokers.embedded import Log, Producer

__all__ = ["Visits"]

_TICK = 0.01


class Visits:
    """Writes visits to a topic as they fall due, on a thread of its own.

    Each carries its number and the time at which it was due to arrive, so a writer that is late
    makes latencies longer, never shorter. Visitors are drawn at random, all
    with the same probability.
    """

    def __init__(self, log: Log, topic: str, *, rate: float, keys: int) -> None:
        self._log = log
        self._topic = topic
        self._rate = rate
        self._keys = keys
        self._random = Random(1)
        self._ended = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._write, name="thulawa-visits", daemon=True)
        self._sent = 0
        self.arrived = 0
        self.started = 0.0

    def warm_up(self, visits: int) -> None:
        """Write some visits at once."""
        with self._log.producer() as producer:
            for _ in range(visits):
                self._send(producer, time.time())

    def start(self) -> None:
        """Let visits arrive from now on."""
        self.started = time.time()
        self._thread.start()

    def stop(self) -> None:
        """Let no more arrive; raise what went wrong."""
        self._ended.set()
        if self.started:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _write(self) -> None:
        try:
            with self._log.producer() as producer:
                while not self._ended.wait(_TICK):
                    due = int((time.time() - self.started) * self._rate)
                    for number in range(self.arrived, due):
                        self._send(producer, self.started + number / self._rate)
                    producer.flush()
                    self.arrived = max(due, self.arrived)
        except Exception as error:  # noqa: BLE001 raised where it is seen, by stop()
            self._error = error

    def _send(self, producer: Producer, due: float) -> None:
        number = self._random.randrange(self._keys)
        ip = b"10.%d.%d.%d" % (number >> 16 & 255, number >> 8 & 255, number & 255)
        arrived = int(due * 1000)
        visit = json.dumps({"visit": self._sent, "arrived": arrived}).encode()
        producer.send(self._topic, key=ip, value=visit, timestamp=arrived)
        self._sent += 1
