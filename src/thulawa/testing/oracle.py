"""Check the events of a run against its order contract.

The oracle knows the contract and nothing of the engine: it is implemented by other means (explicit
lines and sets instead of queues and states), so that it does not repeat a mistake of the engine. It
raises at the event that violates the contract, not at the end, while the list of events is short.
A violation is also stored: the wrapped function runs inside the engine, which catches what
functions raise, so `OrderOracle.check_complete` raises it again.

A *line* is a set of records among which order matters: the records of one key, all unkeyed ones, or
the whole partition. A line may be serial (one call at a time, in offset order) and ordered (outputs
in offset order); a line that is neither only stores the events of its key.

The next record of a serial line may start when the record before it is final: its call finished, it
was settled without a call, or it left (emitted, dropped). A failed attempt is not final, because it
is retried or handled by the error policy; nor is a record that was returned unprocessed. A record
may leave without a call: by cache, single flight and quarantine.
"""

import heapq
import inspect
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from itertools import zip_longest
from typing import Any, Literal, NoReturn, TypeVar, cast, get_args

F = TypeVar("F", bound=Callable[..., Any])
Order = Literal["key", "partition", "none", "emit"]
Emit = Literal["finished", "partition"]
Unkeyed = Literal["ordered", "parallel"]

_OFFSETS_SHOWN = 10
_EVENTS_SHOWN = 12
_RETURNED = "returned unprocessed"


class OrderViolation(AssertionError):
    """The order contract was violated; the message lists the events of the key."""


class Pending:
    """A set of offsets with access to the lowest one, by a heap with lazy removal.

    >>> pending = Pending([5, 3])
    >>> pending.discard(3)
    >>> pending.first()
    5
    """

    def __init__(self, offsets: Iterable[int] = ()) -> None:
        self._members: set[int] = set()
        self._heap: list[int] = []
        for offset in offsets:
            self.add(offset)

    def add(self, offset: int) -> None:
        """Add an offset, if it is not in the set."""
        if offset not in self._members:
            self._members.add(offset)
            heapq.heappush(self._heap, offset)

    def discard(self, offset: int) -> None:
        """Remove an offset, if it is in the set."""
        self._members.discard(offset)
        # Here and not in first(): a record that is retried for ever would accumulate copies.
        while self._heap and self._heap[0] not in self._members:
            heapq.heappop(self._heap)

    def first(self) -> int | None:
        """Return the lowest offset, or None when there is none."""
        return self._heap[0] if self._heap else None


@dataclass(slots=True, eq=False)
class Line:
    """Records among which order matters, and their last events."""

    name: str
    serial: bool
    ordered: bool
    to_start: Pending = field(default_factory=Pending)
    to_leave: Pending = field(default_factory=Pending)
    running: set[int] = field(default_factory=set)
    last_finished: int = -1
    events: deque[str] = field(default_factory=lambda: deque(maxlen=_EVENTS_SHOWN))


@dataclass(slots=True, eq=False)
class TrackedRecord:
    """The state of one record."""

    offset: int
    line: Line
    running: bool = False
    finished: bool = False
    settled: bool = False  # its result is final, even if a call is still running
    left: str | None = None  # how it left, if it has


class OrderOracle:
    """Check a run against its order contract; raise `OrderViolation` at the first violation.

    ``order``: ``key`` one call at a time per key, in offset order; ``partition`` one call at
    a time; ``none``; ``emit`` calls of a key may overlap, outputs keep the key's order.
    ``emit``: ``finished`` or ``partition`` (all outputs by offset). ``unkeyed``: records with
    key None are ``ordered`` like one key, or ``parallel``. ``clock`` adds times to the events.

    >>> oracle = OrderOracle(order="key")
    >>> oracle.arrived(0, "a"), oracle.arrived(1, "a")
    (None, None)
    >>> oracle.started(0)
    >>> oracle.started(1)
    Traceback (most recent call last):
    thulawa.testing.oracle.OrderViolation: 1 started while 0 was running, in key 'a':
      arrived 0
      arrived 1
      started 0
      started 1
    """

    def __init__(
        self,
        *,
        order: Order = "key",
        emit: Emit = "finished",
        unkeyed: Unkeyed = "ordered",
        clock: Callable[[], float] | None = None,
    ) -> None:
        _check("order", order, Order)
        _check("emit", emit, Emit)
        _check("unkeyed", unkeyed, Unkeyed)
        self.order = order
        self.emit = emit
        self.unkeyed = unkeyed
        self.violations: list[OrderViolation] = []
        self._clock = clock
        self._records: dict[int, TrackedRecord] = {}
        self._lines: dict[Hashable, Line] = {}
        self._all_to_leave = Pending()
        self._highest = -1
        # Plain functions report from their threads.
        self._lock = threading.RLock()

    def arrived(self, offset: int, key: Hashable = None) -> None:
        """Record that the engine accepted a record, for the first time or after it was returned."""
        with self._lock:
            known = self._records.get(offset)
            record = known or TrackedRecord(offset, self._line(key))
            self._note("arrived", record)
            if known is not None:
                self._require(known.left == _RETURNED, record, "arrived twice")
                known.left, known.finished, known.settled = None, False, False
                return
            self._require(offset > self._highest, record, f"arrived after {self._highest}")
            self._highest = offset
            self._records[offset] = record
            record.line.to_start.add(offset)
            record.line.to_leave.add(offset)
            self._all_to_leave.add(offset)

    def started(self, *offsets: int) -> None:
        """Record that a call started, for one record or for a batch."""
        with self._lock:
            records = [self._note("started", offset) for offset in sorted(offsets)]
            for record in records:
                self._require(record.left is None, record, f"started after it was {record.left}")
                self._require(not record.settled, record, "started after it was settled")
                self._require(not record.running, record, "started while it was running")
                if record.line.serial:
                    running = ", ".join(map(str, sorted(record.line.running)))
                    self._require(not running, record, f"started while {running} was running")
            for record in records:
                self._check_turn(record)
                record.running, record.finished = True, False
                record.line.running.add(record.offset)
                record.line.to_start.discard(record.offset)

    def finished(self, *offsets: int) -> None:
        """Record that the call returned for these records."""
        with self._lock:
            for offset in offsets:
                record = self._stop("finished", offset)
                record.finished = True
                record.line.last_finished = max(record.line.last_finished, offset)

    def failed(self, *offsets: int) -> None:
        """Record that the call raised, timed out or was cancelled."""
        with self._lock:
            for offset in offsets:
                record = self._stop("failed", offset)
                if record.left is None and not record.settled:
                    record.line.to_start.add(offset)

    def ended(self, offsets: Sequence[int], results: Sequence[object] = ()) -> None:
        """Record that a call returned; results that are exceptions fail their records.

        In a serial line the records after the first failed one fail too.
        """
        broken: list[Line] = []
        for offset, result in zip_longest(offsets, results[: len(offsets)]):
            line = self._records[offset].line
            if isinstance(result, Exception) or line in broken:
                self.failed(offset)
                broken += [line] * line.serial
            else:
                self.finished(offset)

    def settled(self, offset: int) -> None:
        """Record that a record's result is final though it has not left yet; idempotent.

        The error policy has decided, or the result was known: the next record of the line may
        start, even before the output is delivered.
        """
        with self._lock:
            if offset in self._records and self._records[offset].settled:
                return
            record = self._note("settled", offset)
            self._require(record.left is None, record, f"settled after it was {record.left}")
            if record.line.serial and not (record.running or record.finished):
                first = record.line.to_start.first()
                self._require(first == offset, record, f"settled before {first} was final")
            record.settled = True
            record.line.to_start.discard(offset)

    def emitted(self, offset: int) -> None:
        """Record that a record's output (or dead letter, or error column) left the engine."""
        with self._lock:
            record = self._leave("emitted", offset)
            if record.line.ordered:
                self._check_first(record, record.line.to_leave, "of its line")
            if self.emit == "partition":
                self._check_first(record, self._all_to_leave, "of the partition")
            self._settle(record)

    def dropped(self, offset: int) -> None:
        """Record that a record ended without output: filtered, or dropped by the policy."""
        with self._lock:
            self._settle(self._leave("dropped", offset))

    def returned_unprocessed(self, offset: int) -> None:
        """Record that a record was returned unprocessed; none of its line may overtake it."""
        with self._lock:
            record = self._leave(_RETURNED, offset)
            record.line.to_start.add(offset)
            # Records before it that are returned too may start again.
            record.line.last_finished = min(record.line.last_finished, offset - 1)

    def check_complete(self) -> None:
        """Raise if there was a violation, or if a record has not left."""
        with self._lock:
            if self.violations:
                raise self.violations[0]
            lost = [offset for offset, record in self._records.items() if record.left is None]
            if lost:
                first = self._records[lost[0]]
                shown = ", ".join(map(str, lost[:_OFFSETS_SHOWN]))
                more = f" and {len(lost) - _OFFSETS_SHOWN} more" * (len(lost) > _OFFSETS_SHOWN)
                # Not stored: the records may still leave.
                raise OrderViolation(
                    _describe(f"lost: {shown}{more}; the first of them", first.line)
                )

    def wrap(self, fn: F) -> F:
        """Wrap an async or plain function of a record, or of a list of records (a batch).

        Records have ``offset``. The calls are reported as started, then finished or failed;
        exceptions in a batch's list of results fail that record and the rest of its key.
        """
        # A callable object such as a Server is not a coroutine function, but its __call__ is.
        if inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__):

            @wraps(fn)
            async def wrapped(records: Any) -> Any:
                with self._call(records) as results:
                    results.append(await fn(records))
                return results[0]

        else:

            @wraps(fn)
            def wrapped(records: Any) -> Any:
                with self._call(records) as results:
                    results.append(fn(records))
                return results[0]

        return cast("F", wrapped)

    @contextmanager
    def _call(self, records: Any) -> Iterator[list[Any]]:
        """Report a call; the block appends its result to the list."""
        is_batch = isinstance(records, (list, tuple))
        offsets = [record.offset for record in (records if is_batch else [records])]
        results: list[Any] = []
        self.started(*offsets)
        try:
            yield results
        except BaseException:
            self.failed(*offsets)
            raise
        per_record = is_batch and isinstance(results[0], (list, tuple))
        self.ended(offsets, results[0] if per_record else ())

    def _line(self, key: Hashable) -> Line:
        if self.order == "partition":
            key = None
        if key not in self._lines:
            if self.order == "partition":
                line = Line("the partition", serial=True, ordered=True)
            else:
                name = "the unkeyed records" if key is None else f"key {key!r}"
                free = self.order == "none" or (key is None and self.unkeyed == "parallel")
                line = Line(name, serial=self.order == "key" and not free, ordered=not free)
            self._lines[key] = line
        return self._lines[key]

    def _note(self, event: str, record: TrackedRecord | int) -> TrackedRecord:
        """Add the event first, so that a violation's message includes it."""
        if isinstance(record, int):
            breach = f"{record} {event} without having arrived"
            record = self._records.get(record) or self._violated(breach)
        time = "" if self._clock is None else f" at {self._clock():.6g} s"
        record.line.events.append(f"{event} {record.offset}{time}")
        return record

    def _stop(self, event: str, offset: int) -> TrackedRecord:
        record = self._note(event, offset)
        self._require(record.running, record, f"{event} without having started")
        record.running = False
        record.line.running.discard(offset)
        return record

    def _leave(self, how: str, offset: int) -> TrackedRecord:
        record = self._note(how, offset)
        self._require(record.left is None, record, f"{how} after it was {record.left}")
        record.left = how
        return record

    def _settle(self, record: TrackedRecord) -> None:
        record.line.to_start.discard(record.offset)
        record.line.to_leave.discard(record.offset)
        self._all_to_leave.discard(record.offset)

    def _check_turn(self, record: TrackedRecord) -> None:
        line, offset = record.line, record.offset
        if not line.serial:
            return
        if record.finished:
            line.to_start.add(offset)  # retried although it had finished: a late timeout
        first = line.to_start.first()
        self._require(first == offset, record, f"started before {first} was final")
        after = line.last_finished
        self._require(after <= offset, record, f"started after {after} had finished")

    def _check_first(self, record: TrackedRecord, pending: Pending, of: str) -> None:
        first = pending.first()
        if first is not None and first != record.offset:
            ahead = self._records[first]
            state = ahead.left or "waiting"
            breach = f"{record.offset} emitted before {first} {of}, which is {state}"
            self._violated(breach, ahead.line, record.line)

    def _require(self, fact: bool, record: TrackedRecord, breach: str) -> None:  # noqa: FBT001 an assertion
        if not fact:
            self._violated(f"{record.offset} {breach}", record.line)

    def _violated(self, breach: str, *lines: Line) -> NoReturn:
        self.violations.append(OrderViolation(_describe(breach, *lines)))
        raise self.violations[-1]


def _describe(breach: str, *lines: Line) -> str:
    for line in dict.fromkeys(lines):
        events = "".join(f"\n  {event}" for event in line.events)
        breach += f", in {line.name}:{events}"
    return breach


def _check(name: str, value: str, allowed: Any) -> None:
    if value not in get_args(allowed):
        raise ValueError(f"{name} is one of {', '.join(get_args(allowed))}, not {value!r}")
