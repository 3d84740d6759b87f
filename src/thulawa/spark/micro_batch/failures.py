"""What ended a query, in a few words: Spark tells it in a hundred lines."""

from itertools import dropwhile

from thulawa.core.errors import QueryFailed

__all__ = ["failure_of"]

_BECAUSE = "The above exception was the direct cause of the following exception:"
_TRACEBACK = "Traceback (most recent call last):\n"
_NOISE = (" SQLSTATE", "\tat ", "Driver stacktrace:")  # of Spark, behind the error


def failure_of(error: Exception) -> QueryFailed:
    """Give Spark's error in a few words; Spark's own is the cause."""
    failure = QueryFailed(_last_words(error))
    failure.__cause__ = error
    return failure


def _last_words(error: Exception) -> str:
    """Say what ended a query: of Spark's text, the error of the last traceback, and its cause."""
    text = str(error).partition("\n=== Streaming Query ===")[0]
    before, traceback, lines = text.rpartition(_TRACEBACK)
    if not traceback:
        return f"{type(error).__name__}: {text}"
    told = dropwhile(lambda line: line.startswith(" "), lines.splitlines())
    words = [line for line in told if not line.startswith(_NOISE)]
    cause, because, _ = before.rpartition(_BECAUSE)
    if _TRACEBACK in cause and not before[len(cause) + len(because) :].strip():
        words.append(f"caused by {cause.strip().splitlines()[-1]}")
    return "\n".join(words)
