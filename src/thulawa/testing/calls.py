"""Lets a user function report its own calls to the order oracle.

The function is wrapped where the engine calls it, so what is reported is what really ran,
and not what the engine believes it has started.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, Protocol, TypeVar, cast

__all__ = ["reported"]

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class CallObserver(Protocol):
    """What a wrapped function needs of the oracle."""

    def started(self, *offsets: int) -> None:
        """Note that one call began."""

    def failed(self, *offsets: int) -> None:
        """Note that it raised."""

    def ended(self, offsets: Sequence[int], results: Sequence[object]) -> None:
        """Note that it returned, with a result for each record of a batch."""


def reported(judge: CallObserver, fn: F) -> F:
    """Wrap an async or plain function of a record, or of a sequence of records (a batch)."""
    # A callable object (a Server, say) is no coroutine function, its __call__ is.
    if inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__):

        @wraps(fn)
        async def wrapped(records: Any) -> Any:
            with _call(judge, records) as returned:
                return returned(await fn(records))

    else:

        @wraps(fn)
        def wrapped(records: Any) -> Any:
            with _call(judge, records) as returned:
                return returned(fn(records))

    return cast("F", wrapped)


@contextmanager
def _call(judge: CallObserver, records: Any) -> Iterator[Callable[[T], T]]:
    is_batch = isinstance(records, (list, tuple))
    offsets = [record.offset for record in (records if is_batch else [records])]
    results: list[Any] = []

    def returned(result: T) -> T:
        results.append(result)
        return result

    judge.started(*offsets)
    try:
        yield returned
    except BaseException:
        judge.failed(*offsets)
        raise
    per_record = is_batch and isinstance(results[0], (list, tuple))
    judge.ended(offsets, results[0] if per_record else ())
