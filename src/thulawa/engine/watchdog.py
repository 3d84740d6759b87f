"""Warn of a function that blocks the event loop, while it blocks it.

A callback on the loop updates a heartbeat; a thread checks its age. If it is old, and the loop's
thread is inside the same call of the user's function check after check, the thread logs the
function's name and the line. (A timer on the loop itself would fire only when the call is over, or
never.) A loop that is merely busy, for example with many short calls, causes no warning.
"""

import asyncio
import logging
import sys
import threading
from time import monotonic
from types import CodeType, FrameType
from typing import Self

_log = logging.getLogger("thulawa.engine")


class Watchdog:
    """Warns when one call blocks the running loop for ``threshold`` seconds."""

    def __init__(self, name: str, code: CodeType | None, threshold: float = 0.25) -> None:
        self._name, self._code = name, code
        self._threshold = threshold
        self._beat_at = monotonic()
        self._stop = threading.Event()
        self._watched = threading.get_ident()
        self._handle: asyncio.TimerHandle | None = None
        self.warnings = 0

    def __enter__(self) -> Self:
        self._watched = threading.get_ident()
        self._beat()
        threading.Thread(target=self._watch, name=f"{self._name}-watchdog", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._handle is not None:
            self._handle.cancel()

    def _beat(self) -> None:
        self._beat_at = monotonic()
        loop = asyncio.get_running_loop()
        self._handle = loop.call_later(self._threshold / 4, self._beat)

    def _watch(self) -> None:
        suspect: FrameType | None = None
        since = 0.0
        while not self._stop.wait(self._threshold / 4):
            now = monotonic()
            late = now - self._beat_at > self._threshold / 2
            innermost = sys._current_frames().get(self._watched) if late else None  # noqa: SLF001 there is no public way
            call = self._call_in(innermost)
            if call is not suspect:
                suspect, since = call, now
            elif innermost is not None and call is not None and now - since >= self._threshold:
                self._warn(now - since, innermost)
                since = float("inf")  # one warning per call
            del innermost, call

    def _call_in(self, frame: FrameType | None) -> FrameType | None:
        """Return the frame of the user's function that led to a frame, if one did."""
        while frame is not None and frame.f_code is not self._code:
            frame = frame.f_back
        return frame

    def _warn(self, seconds: float, at: FrameType) -> None:
        self.warnings += 1
        _log.warning(
            "%s has blocked the event loop for %.2f s, at %s:%d in %s: no other key can go on; "
            "await instead, or make it a plain function, which runs on threads",
            self._name,
            seconds,
            at.f_code.co_filename,
            at.f_lineno,
            at.f_code.co_name,
        )
