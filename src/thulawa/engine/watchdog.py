"""Notice a function that blocks the event loop, while it blocks it.

A callback on the loop leaves a heartbeat; a thread looks whether it is fresh. When it is not,
and the loop's thread is inside one and the same call of the user's function look after look, the
thread logs the function's name and the line: a timer on the loop itself would speak up only when
it is over, or never. A loop that is merely busy, be it with many short calls, gives no warning.
"""

import asyncio
import logging
import sys
import threading
from time import monotonic
from types import CodeType, FrameType, TracebackType
from typing import Self

__all__ = ["Watchdog"]

_log = logging.getLogger("thulawa.engine")


class Watchdog:
    """Warns when one call keeps the running loop from coming round for ``patience`` seconds."""

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
        suspect: FrameType | None = None
        since = 0.0
        while not self._over.wait(self._patience / 4):
            now = monotonic()
            late = now - self._beat_at > self._patience / 2
            innermost = sys._current_frames().get(self._watched) if late else None  # noqa: SLF001 its only door
            call = self._call_in(innermost)
            if call is not suspect:
                suspect, since = call, now
            elif innermost is not None and call is not None and now - since >= self._patience:
                self._warn(now - since, innermost)
                since = float("inf")  # once a call
            del innermost, call

    def _call_in(self, frame: FrameType | None) -> FrameType | None:
        """Give the call of the user's function that led to a frame, if one did."""
        while frame is not None and frame.f_code is not self._code:
            frame = frame.f_back
        return frame

    def _warn(self, seconds: float, at: FrameType) -> None:
        self.warnings += 1
        _log.warning(
            "%s blocks the event loop for %.2f s already, at %s:%d in %s: while it does, no other "
            "key goes on; await instead, or make it a plain function, which gets threads",
            self._name,
            seconds,
            at.f_code.co_filename,
            at.f_lineno,
            at.f_code.co_name,
        )
