"""Notice a function that blocks the event loop, while it blocks it.

A callback on the loop leaves a heartbeat; a thread looks whether it is fresh. When it is not,
and the loop's thread is inside the user's function, the thread logs the function's name and the
line: a timer on the loop itself would speak up only when it is over, or never. A loop that is
merely busy with many calls is not the function's fault and gives no warning.
"""

import asyncio
import logging
import sys
import threading
from time import monotonic
from types import CodeType, TracebackType
from typing import Self

__all__ = ["Watchdog"]

_log = logging.getLogger("thulawa.engine")


class Watchdog:
    """Warns when the running loop does not come round within ``patience`` seconds."""

    def __init__(self, name: str, code: CodeType | None, patience: float = 0.25) -> None:
        self._name = name
        self._code = code
        self._patience = patience
        self._beat_at = monotonic()
        self._over = threading.Event()
        self._watched = threading.get_ident()
        self._handle: asyncio.TimerHandle | None = None
        self.warnings = 0

    def __enter__(self) -> Self:
        self._watched = threading.get_ident()
        self._beat()
        threading.Thread(target=self._watch, name=f"{self._name}-watchdog", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        if self._handle is not None:
            self._handle.cancel()

    def _beat(self) -> None:
        self._beat_at = monotonic()
        loop = asyncio.get_running_loop()
        self._handle = loop.call_later(self._patience / 4, self._beat)

    def _watch(self) -> None:
        warned_of = 0.0
        while not self._over.wait(self._patience / 4):
            beat = self._beat_at
            stuck = monotonic() - beat
            place = self._stuck_at() if stuck > self._patience and beat != warned_of else None
            if place is not None:
                warned_of = beat
                self.warnings += 1
                _log.warning(
                    "%s blocks the event loop for %.2f s already, at %s: while it does, no other "
                    "key goes on; await instead, or make it a plain function, which gets threads",
                    self._name,
                    stuck,
                    place,
                )

    def _stuck_at(self) -> str | None:
        """Give the line the watched thread is at, if the user's function led there."""
        frame = innermost = sys._current_frames().get(self._watched)  # noqa: SLF001 its only door
        while frame is not None and frame.f_code is not self._code:
            frame = frame.f_back
        if frame is None or innermost is None:
            return None
        code = innermost.f_code
        return f"{code.co_filename}:{innermost.f_lineno} in {code.co_name}"
