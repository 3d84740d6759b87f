"""SIGTERM and SIGINT as requests to stop: the first politely, the second at once."""

import signal
from types import FrameType, TracebackType
from typing import Any, Self

__all__ = ["StopSignals"]

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Notes the signals that ask a program to stop, while the block runs.

    Before `take_over` a signal raises `KeyboardInterrupt`: nothing runs yet that could be stopped
    politely.
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
        """Only note signals from here on; Spark has set a handler of its own meanwhile."""
        self._raises = False
        self._install()

    @property
    def exit_code(self) -> int:
        """The shell's code for a program that the last signal ended."""
        return 128 + self.received[-1]

    def _install(self) -> None:
        for number in _SIGNALS:
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 Python's signature
        self.received.append(number)
        if self._raises:
            raise KeyboardInterrupt
