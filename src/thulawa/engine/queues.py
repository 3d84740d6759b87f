"""Keys and their queues: who may go next.

A record waits in the queue of its key. A key is *ready* when it has a record at its head and
nothing of it is taken up; ready keys stand in the heap of their head's lane, the one with the
earliest head timestamp first, so that no key starves: taking and adding is O(log ready keys).
What a key is depends on the order contract alone: one key for the whole partition, one for
each record, or the record's own. Everything else works on queues and never asks.

Tried and rejected: round robin over keys (a key that just became ready overtakes one that has
waited long); one heap of records (a busy key's records have to be skipped over and over).
"""

from collections import deque
from collections.abc import Hashable, Iterator
from itertools import islice

from thulawa.core.errors import BadKey, BadLane
from thulawa.engine.model import NoLane, Record, Ticket
from thulawa.engine.options import Order, Unkeyed

__all__ = ["KeyQueue", "KeyRule"]


class KeyQueue:
    """The records of one key that wait, oldest first, and the tickets that are to be retried.

    ``taken`` counts tickets of this key that are taken up and not final. ``stamp`` is the
    sequence number under which the key stands among the ready ones, 0 when it does not.
    ``parked`` counts the retries, from the first, that wait for their time.
    """

    # without slots, as tickets are: what most queues never use stands in the class
    head: Record | None
    rest: deque[Record] | None  # most keys hold one at a time, and a deque costs 600 bytes
    retries: deque[Ticket] | None
    taken: int = 0
    stamp: int = 0
    parked: int = 0
    linger: list[object] | None = None

    def __init__(self, key: Hashable, head: Record) -> None:
        self.key = key
        self.head = head
        self.rest = None  # asked often: what stands in the class is found the slow way
        self.retries = None

    def append(self, record: Record) -> None:
        """Add a record at the end."""
        if self.head is None:
            self.head = record
        elif self.rest is None:
            self.rest = deque((record,))
        else:
            self.rest.append(record)

    def next_record(self) -> Record | None:
        """Give the record that goes next, a retried one first."""
        return self.retries[0].record if self.retries else self.head

    def pop(self) -> Ticket:
        """Take up the record at the head."""
        if self.retries:
            return self.retries.popleft()
        record = self.head
        assert record is not None
        self.head = self.rest.popleft() if self.rest else None
        return Ticket(record, self)

    def put_back(self, tickets: list[Ticket]) -> None:
        """Put tickets back at the head, in their order."""
        if self.retries is None:
            self.retries = deque(tickets)
        else:
            self.retries.extendleft(reversed(tickets))

    def waiting(self) -> int:
        """Count the records that wait and have no ticket."""
        return 0 if self.head is None else 1 + (len(self.rest) if self.rest else 0)

    def __len__(self) -> int:
        return self.waiting() + (len(self.retries) if self.retries else 0)

    def parked_bytes(self) -> int:
        """Sum up the sizes of the parked records."""
        return sum(ticket.record.size for ticket in islice(self.retries or (), self.parked))

    def records(self) -> list[Record]:
        """List all that wait, in order."""
        retried = [ticket.record for ticket in self.retries or ()]
        first = [] if self.head is None else [self.head]
        return retried + first + list(self.rest or ())


_PLAIN: frozenset[type] = frozenset({str, bytes, int, bool})
_COMMON = "<unkeyed>", object()
_PARTITION = "<partition>", object()


class KeyRule:
    """Says which queue a record belongs in, by the order contract.

    ``easy`` are the types of keys that need not be asked about: in lane 0 they are the answer.
    """

    __slots__ = ("_lanes", "_order", "_unkeyed", "easy")

    def __init__(self, order: Order, unkeyed: Unkeyed, lanes: int) -> None:
        self._order = order
        self._unkeyed = unkeyed
        self._lanes = lanes
        self.easy = _PLAIN if order == "key" else frozenset()

    def __call__(self, record: Record) -> Hashable:
        """Give the key of the record's queue, or raise `BadKey` or `BadLane`."""
        if record.lane and not 0 <= record.lane < self._lanes:
            why = f"there is no lane {record.lane}: the engine has {self._lanes}, counted from 0"
            if isinstance(record.lane, NoLane):
                why = record.lane.why
            raise BadLane(why, offset=record.offset)
        if self._order == "partition":
            return _PARTITION
        if self._order != "key":
            return record  # a queue of its own
        return self.named(record)

    def named(self, record: Record) -> Hashable:
        """Give the record's key as the caller sees it, checked."""
        key = record.key
        if key is None:
            return _COMMON if self._unkeyed == "ordered" else record
        if type(key) not in _PLAIN:
            _check(key, record)
        return key


def _check(key: Hashable, record: Record) -> None:
    """Raise `BadKey` unless the key can be hashed and equals itself; it may do anything."""
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
    """Give the parts of a composite key, or the key itself."""
    if not isinstance(key, tuple):
        yield key
        return
    for part in key:
        yield from _flat(part)
