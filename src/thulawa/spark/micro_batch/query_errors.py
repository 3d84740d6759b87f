"""Shorten Spark's errors to the message of the exception that ended a query."""

from itertools import dropwhile

from thulawa.errors import QueryFailed

__all__ = ["failure_of"]

_BECAUSE = "The above exception was the direct cause of the following exception:"
_TRACEBACK = "Traceback (most recent call last):\n"
_NOISE = (" SQLSTATE", "\tat ", "Driver stacktrace:")  # that Spark adds after the error


def failure_of(error: Exception) -> QueryFailed:
    """Return a `QueryFailed` with a short message and Spark's error as its cause."""
    failure = QueryFailed(_message(error))
    failure.__cause__ = error
    return failure


def _message(error: Exception) -> str:
    """Return the error of the last traceback in Spark's text, and its direct cause."""
    text = str(error).partition("\n=== Streaming Query ===")[0]
    before, traceback, lines = text.rpartition(_TRACEBACK)
    if not traceback:
        return f"{type(error).__name__}: {text}"
    message = dropwhile(lambda line: line.startswith(" "), lines.splitlines())
    words = [line for line in message if not line.startswith(_NOISE)]
    cause, because, _ = before.rpartition(_BECAUSE)
    if _TRACEBACK in cause and not before[len(cause) + len(because) :].strip():
        words.append(f"caused by {cause.strip().splitlines()[-1]}")
    return "\n".join(words)
