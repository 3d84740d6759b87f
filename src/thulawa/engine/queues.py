"""Keys and their queues.

A record waits in the queue of its key. A key is *ready* when it has a record at its head and no
active ticket. Ready keys are in the heap of their head's lane, the earliest head timestamp first,
so that no key starves; adding and removing is O(log ready keys). The order contract alone decides
what a key is: one key for the whole partition, one for each record, or the record's own. All
other code works on queues and does not look at the contract.

Tried and rejected: round robin over keys (a key that just became ready overtakes one that has
waited long); one heap of records (an active key's records have to be skipped again and again).
"""

from collections import deque
from collections.abc import Hashable, Iterator
from itertools import islice

from thulawa.engine.options import Order, Unkeyed
from thulawa.engine.work_items import NoLane, Ticket, WorkItem
from thulawa.errors import BadKey, BadLane


class KeyQueue:
    """The waiting records of one key, oldest first, and its tickets to be retried."""

    # no slots, as for tickets: rarely used attributes are class defaults
    head: WorkItem | None  # the oldest record
    rest: deque[WorkItem] | None  # the others; most keys hold one, and a deque costs 600 bytes
    retries: deque[Ticket] | None  # tickets to be retried, before ``head``
    active: int = 0  # tickets in a call or following one
    stamp: int = 0  # sequence number of its entry among the ready keys; 0: not ready
    parked: int = 0  # how many of ``retries``, from the first, wait until they are due
    linger: list[object] | None = None  # the timer of a batch that is not full

    def __init__(self, key: Hashable, head: WorkItem) -> None:
        self.key = key
        self.head = head
        self.rest = None  # read often, and class defaults are slower to read
        self.retries = None

    def append(self, record: WorkItem) -> None:
        """Append a record."""
        if self.head is None:
            self.head = record
        elif self.rest is None:
            self.rest = deque((record,))
        else:
            self.rest.append(record)

    def next_record(self) -> WorkItem | None:
        """Return the record that is dispatched next, retries first."""
        return self.retries[0].record if self.retries else self.head

    def pop(self) -> Ticket:
        """Remove the record at the head; return its ticket."""
        if self.retries:
            return self.retries.popleft()
        record = self.head
        assert record is not None
        self.head = self.rest.popleft() if self.rest else None
        return Ticket(record, self)

    def put_back(self, tickets: list[Ticket]) -> None:
        """Insert tickets at the head, in their order."""
        if self.retries is None:
            self.retries = deque(tickets)
        else:
            self.retries.extendleft(reversed(tickets))

    def waiting(self) -> int:
        """Return the number of records without a ticket."""
        return 0 if self.head is None else 1 + (len(self.rest) if self.rest else 0)

    def __len__(self) -> int:
        return self.waiting() + (len(self.retries) if self.retries else 0)

    def parked_bytes(self) -> int:
        """Return the total size of the parked records."""
        return sum(ticket.record.size for ticket in islice(self.retries or (), self.parked))

    def records(self) -> list[WorkItem]:
        """Return all waiting records, in order."""
        retried = [ticket.record for ticket in self.retries or ()]
        first = [] if self.head is None else [self.head]
        return retried + first + list(self.rest or ())


_PLAIN_TYPES: frozenset[type] = frozenset({str, bytes, int, bool})
_COMMON = "<unkeyed>", object()
_PARTITION = "<partition>", object()


class KeyRule:
    """Maps a record to the key of its queue, by the order contract.

    A key whose type is in ``plain_types`` is the key of its queue, if the record is in lane 0.
    """

    __slots__ = ("_lanes", "_order", "_unkeyed", "plain_types")

    def __init__(self, order: Order, unkeyed: Unkeyed, lanes: int) -> None:
        self._order = order
        self._unkeyed = unkeyed
        self._lanes = lanes
        self.plain_types = _PLAIN_TYPES if order == "key" else frozenset()

    def __call__(self, record: WorkItem) -> Hashable:
        """Return the key of the record's queue; raise `BadKey` or `BadLane` if there is none."""
        if record.lane and not 0 <= record.lane < self._lanes:
            why = f"there is no lane {record.lane}: the engine has {self._lanes}, counted from 0"
            if isinstance(record.lane, NoLane):
                why = record.lane.why
            raise BadLane(why, offset=record.offset)
        if self._order == "partition":
            return _PARTITION
        if self._order != "key":
            return record  # a queue of its own
        return self.checked_key(record)

    def checked_key(self, record: WorkItem) -> Hashable:
        """Return the record's own key; raise `BadKey` if it cannot be a key."""
        key = record.key
        if key is None:
            return _COMMON if self._unkeyed == "ordered" else record
        if type(key) not in _PLAIN_TYPES:
            _check(key, record)
        return key


def _check(key: Hashable, record: WorkItem) -> None:
    """Raise `BadKey` unless the key can be hashed and equals itself."""
    kind, trouble = type(key).__name__, "hashed"
    try:
        hash(key)
        trouble = "compared"
        nan = any(part != part for part in _flat(key))  # noqa: PLR0124 true of NaN alone
    except Exception as error:
        raise BadKey(f"key of type {kind} cannot be {trouble}", offset=record.offset) from error
    if nan:
        raise BadKey("key is or contains NaN, which equals nothing", offset=record.offset)


def _flat(key: object) -> Iterator[object]:
    """Yield the parts of a composite key, or the key itself."""
    if not isinstance(key, tuple):
        yield key
        return
    for part in key:
        yield from _flat(part)
