"""Wrap a user function so that it reports its calls to the order oracle.

The function is wrapped where the engine calls it, so the reports are about calls that really ran,
not about those the engine believes to have started.
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
    """The methods of the oracle that a wrapped function calls."""

    def started(self, *offsets: int) -> None:
        """Record that a call started."""

    def failed(self, *offsets: int) -> None:
        """Record that the call raised."""

    def ended(self, offsets: Sequence[int], results: Sequence[object]) -> None:
        """Record that the call returned, with a result for each record of a batch."""


def reported(observer: CallObserver, fn: F) -> F:
    """Wrap an async or plain function of a record, or of a sequence of records (a batch)."""
    # A callable object such as a Server is not a coroutine function, but its __call__ is.
    if inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__):

        @wraps(fn)
        async def wrapped(records: Any) -> Any:
            with _call(observer, records) as returned:
                return returned(await fn(records))

    else:

        @wraps(fn)
        def wrapped(records: Any) -> Any:
            with _call(observer, records) as returned:
                return returned(fn(records))

    return cast("F", wrapped)


@contextmanager
def _call(observer: CallObserver, records: Any) -> Iterator[Callable[[T], T]]:
    is_batch = isinstance(records, (list, tuple))
    offsets = [record.offset for record in (records if is_batch else [records])]
    results: list[Any] = []

    def returned(result: T) -> T:
        results.append(result)
        return result

    observer.started(*offsets)
    try:
        yield returned
    except BaseException:
        observer.failed(*offsets)
        raise
    per_record = is_batch and isinstance(results[0], (list, tuple))
    observer.ended(offsets, results[0] if per_record else ())
