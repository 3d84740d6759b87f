"""Waiting for records without asking all the time.

SQLite has no way to be told of another process's commit, but it keeps a counter that changes
with every one (``PRAGMA data_version``): looking at it costs some 5 µs, reads no table and takes no
lock. A waiting consumer looks at it, sleeps for 1 ms, and doubles the sleep up to 50 ms while
nothing happens. So a busy topic answers within about a millisecond, an idle consumer wakes 20
times a second, and a record that ends a long silence waits for at most 50 ms.
"""

import time
from collections.abc import Callable

from thulawa.brokers.embedded.database import Database


class Waiter:
    """Waits until something was committed by another connection; clock and sleep are given."""

    def __init__(
        self,
        database: Database,
        *,
        shortest: float = 0.001,
        longest: float = 0.05,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._database = database
        self._shortest = shortest
        self._longest = longest
        self._clock = clock
        self._sleep = sleep

    def deadline(self, timeout: float) -> float:
        """Give the time at which a wait of ``timeout`` seconds that begins now is over."""
        return self._clock() + timeout

    def wait(self, version: int, deadline: float) -> bool:
        """Wait for another version than this; give False when the deadline came first."""
        pause = self._shortest
        while self._database.version() == version:
            left = deadline - self._clock()
            if left <= 0:
                return False
            self._sleep(min(pause, left))
            pause = min(2 * pause, self._longest)
        return True
