"""SIGTERM and SIGINT as requests to stop: the first gracefully, the second at once."""

import signal
from types import FrameType, TracebackType
from typing import Any, Self

__all__ = ["StopSignals"]

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Context manager that records signals to stop.

    Before `take_over` a signal raises `KeyboardInterrupt`: nothing is running yet that could be
    stopped gracefully.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self._raises = True
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.getsignal(number) for number in _SIGNALS}
        self._install()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def take_over(self) -> None:
        """Only record signals from now on; Spark has installed its own handler meanwhile."""
        self._raises = False
        self._install()

    @property
    def exit_code(self) -> int:
        """The exit code of a program that the last signal ended."""
        return 128 + self.received[-1]

    def _install(self) -> None:
        for number in _SIGNALS:
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 Python's signature
        self.received.append(number)
        if self._raises:
            raise KeyboardInterrupt
