"""Close resources when Spark ends a Python worker.

Spark ends a worker in three ways. It closes the worker's socket, after which the worker calls
``os._exit``, or sends SIGHUP to all workers when the session stops: both are handled here. It kills
a worker whose task it abandons: then nothing can be closed.

SIGHUP cannot have a handler, because Spark resets handlers whenever a worker waits for a task. It
is blocked instead, and a thread waits for it. Threads inherit the signal mask, so the signal must
be blocked before any other thread is started.
"""

import os
import signal
import threading
from functools import cache
from typing import NoReturn

from thulawa.spark.map_by_key.operator_states import close_all

_AT_EXIT = 10.0  # seconds for closing
_leave = os._exit
_closing = threading.Lock()


@cache
def close_resources_at_exit() -> None:
    """Close this worker's resources when it ends; call it once, on the main thread."""
    owner = os.getpid()

    def close_and_leave(status: int) -> NoReturn:
        if os.getpid() == owner:  # else this is a forked process
            with _closing:  # a second caller waits until all is closed
                close_all(_AT_EXIT)
        _leave(status)

    os._exit = close_and_leave  # what Spark calls
    if hasattr(signal, "pthread_sigmask"):  # on Windows Spark sends no signals
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        threading.Thread(target=_await_hangup, name="thulawa-hangup", daemon=True).start()


def _await_hangup() -> None:
    signal.sigwait({signal.SIGHUP})
    os._exit(1)
