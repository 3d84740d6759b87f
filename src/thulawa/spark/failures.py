"""What ended a query, in a few words: Spark tells it in a hundred lines."""

from itertools import dropwhile

from thulawa.core.errors import QueryFailed

__all__ = ["failure_of", "last_words"]

_NOISE = (" SQLSTATE", "\tat ", "Driver stacktrace:")  # of Spark, behind the error


def failure_of(error: Exception) -> QueryFailed:
    """Give Spark's error in a few words; Spark's own is the cause."""
    failure = QueryFailed(last_words(error))
    failure.__cause__ = error
    return failure


def last_words(error: Exception) -> str:
    """Say what ended a query: of Spark's text, the error at the end of the last traceback."""
    text = str(error).partition("\n=== Streaming Query ===")[0]
    _, traceback, lines = text.rpartition("Traceback (most recent call last):\n")
    if not traceback:
        return f"{type(error).__name__}: {text}"
    told = dropwhile(lambda line: line.startswith(" "), lines.splitlines())
    return "\n".join(line for line in told if not line.startswith(_NOISE))
