"""The ready keys, and which is dispatched next.

One heap per lane, ordered by head timestamp. The next lane is, in this order:

1. that of a ready key whose head arrived ``ageing`` seconds ago, the oldest first;
2. the first lane with fewer calls in flight than its whole reserved permits;
3. of the lanes that have a share, the one that is furthest behind it (stride scheduling: each
   start advances a lane's pass by 1 / share).

A lane's share of the starts is by weight, but not less than its reserved fraction; of strict lanes
the first has all that the others do not reserve. Fractions of a permit that 2. cannot grant, 3.
grants over time. (Rejected: rounding reserved permits up; the last of many lanes got nothing.) A
lane that was idle is advanced to the others, so that it cannot save up starts; one that had more
than its share is held back for a few rounds at most.

With one lane and no ageing this is a plain heap. With ageing each key is also in a heap by the
arrival of its head. A key popped from one heap leaves a stale entry in the other, recognised by its
stamp; stale entries are removed when they outnumber the live ones.
"""

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf
from typing import TypeAlias

from thulawa.engine.options import Lanes
from thulawa.engine.queues import KeyQueue

_Entry: TypeAlias = tuple[float, int, KeyQueue]

_SLACK = 64
_EPSILON = 1e-9  # 29 % of 100 permits are 28.999999999999996
_ROUNDS = 4  # with fewer, lanes whose calls differ in length miss their shares by chance


@dataclass(slots=True, eq=False)
class _LaneQueue:
    """The ready keys of one lane."""

    weight: float
    reserved: float  # fraction of the permits
    reserved_permits: int = 0  # the same as a whole number
    heap: list[_Entry] = field(default_factory=list)  # by head timestamp, maybe with stale entries
    count: int = 0  # ready keys
    in_flight: int = 0  # calls
    stride: float = 0.0  # 1 / its share among the lanes with work; 0: it has none
    passed: float = 0.0  # its pass: the lane with the lowest is next
    max_lead: float = 0.0  # how far its pass may be ahead of the lowest


class ReadyKeys:
    """The keys that may start a call, in the order in which they do."""

    def __init__(self, options: Lanes) -> None:
        self._lanes = [_LaneQueue(lane.weight, lane.reserved) for lane in options.lanes]
        self._first = self._lanes[0]
        self._strict = options.strict
        self._ageing = options.ageing
        self._plain = len(self._lanes) == 1 and options.ageing is None
        self._by_arrival: list[_Entry] = []  # with ageing, all ready keys
        self._busy: list[_LaneQueue] = []  # the lanes with work when shares were last computed
        self._permits = 0
        self._sequence = 0
        self._lowest_pass = 0.0
        self.count = 0
        self.now = 0.0

    def add(self, queue: KeyQueue) -> None:
        """Add a key that is not ready yet."""
        record = queue.retries[0].record if queue.retries else queue.head
        assert record is not None
        self._sequence = stamp = self._sequence + 1
        queue.stamp = stamp
        self.count += 1
        if self._plain:
            heappush(self._first.heap, (record.timestamp, stamp, queue))
            return
        lane = self._lanes[record.lane]
        heappush(lane.heap, (record.timestamp, stamp, queue))
        if self._ageing is not None:
            heappush(self._by_arrival, (record.arrived, stamp, queue))
            lane.heap = _without_stale(lane.heap, lane.count)
            self._by_arrival = _without_stale(self._by_arrival, self.count)
        lane.count += 1

    def add_all(self, queues: list[KeyQueue]) -> None:
        """Add several keys."""
        if not self._plain or self._first.heap or len(queues) == 1:
            for queue in queues:
                self.add(queue)
            return
        entries: list[_Entry] = []
        stamp = self._sequence
        for queue in queues:
            record = queue.retries[0].record if queue.retries else queue.head
            assert record is not None
            queue.stamp = stamp = stamp + 1
            entries.append((record.timestamp, stamp, queue))
        entries.sort()  # a sorted list is a heap
        self._first.heap = entries
        self._sequence = stamp
        self.count = len(entries)

    def take(self, most: int) -> list[KeyQueue]:
        """Remove and return up to ``most`` keys, in order; there must be one lane."""
        if self._ageing is not None:
            return [self.pop(most) for _ in range(min(most, self.count))]
        heap = self._first.heap
        if most >= len(heap):
            heap.sort()
            taken = [entry[2] for entry in heap]
            heap.clear()
        else:
            taken = [heappop(heap)[2] for _ in range(most)]
        for queue in taken:
            queue.stamp = 0
        self.count = len(heap)
        return taken

    def pop(self, permits: int) -> KeyQueue:
        """Remove and return the next key; there must be one."""
        self.count -= 1
        if self._plain:
            queue = heappop(self._first.heap)[2]
            queue.stamp = 0
            return queue
        chosen = self._next_lane(permits)
        queue = self._pop_aged() or self._pop_from(chosen)
        record = queue.next_record()
        assert record is not None
        lane = self._lanes[record.lane]
        lane.count -= 1
        lane.passed += lane.stride
        queue.stamp = 0
        return queue

    def started(self, lane: int) -> None:
        """Count a call of this lane that starts."""
        self._lanes[lane].in_flight += 1

    def finished(self, lane: int) -> None:
        """Count a call of this lane that ends."""
        self._lanes[lane].in_flight -= 1

    def in_flight(self) -> list[int]:
        """Return the calls in flight, lane by lane."""
        return [lane.in_flight for lane in self._lanes]

    def keys(self) -> list[KeyQueue]:
        """Return the ready keys, in no particular order."""
        return [entry[2] for lane in self._lanes for entry in lane.heap if _is_live(entry)]

    def _next_lane(self, permits: int) -> _LaneQueue:
        """Return the next lane, and keep passes from being too far behind or ahead."""
        busy = [lane for lane in self._lanes if lane.count]
        if busy != self._busy or permits != self._permits:
            self._compute_shares(busy, permits)
        last, lowest = self._lowest_pass, inf
        below_reserved = behind = None
        for lane in busy:
            if lane.in_flight < lane.reserved_permits and below_reserved is None:
                below_reserved = lane
            if not lane.stride:
                continue
            passed = lane.passed
            if passed < last:
                lane.passed = passed = last
            elif passed > last + lane.max_lead:
                lane.passed = passed = last + lane.max_lead
            if passed < lowest:
                lowest, behind = passed, lane
        self._lowest_pass = lowest
        chosen = below_reserved or behind
        assert chosen is not None
        return chosen

    def _compute_shares(self, busy: list[_LaneQueue], permits: int) -> None:
        """Set stride and reserved permits of each lane with work."""
        self._busy, self._permits = busy, permits
        for lane, share in zip(busy, _shares(busy, strict=self._strict), strict=True):
            lane.stride = 1 / share if share > _EPSILON else 0.0
            lane.reserved_permits = int(lane.reserved * permits + _EPSILON)
            lane.max_lead = _ROUNDS * (permits + lane.stride)

    def _pop_from(self, lane: _LaneQueue) -> KeyQueue:
        while True:
            _, stamp, queue = heappop(lane.heap)
            if queue.stamp == stamp:
                return queue

    def _pop_aged(self) -> KeyQueue | None:
        if self._ageing is None:
            return None
        heap = self._by_arrival
        while not _is_live(heap[0]):
            heappop(heap)
        return heappop(heap)[2] if self.now - heap[0][0] >= self._ageing else None


def _without_stale(heap: list[_Entry], count: int) -> list[_Entry]:
    """Return the heap, without its stale entries if they outnumber the ``count`` live ones."""
    if len(heap) <= 2 * count + _SLACK:
        return heap
    live = [entry for entry in heap if _is_live(entry)]
    heapify(live)
    return live


def _is_live(entry: _Entry) -> bool:
    return entry[2].stamp == entry[1]


def _shares(busy: list[_LaneQueue], *, strict: bool) -> list[float]:
    """Return the share of each lane with work: by weight, at least what it reserves."""
    if strict:
        others = [lane.reserved for lane in busy[1:]]
        return [1 - sum(others), *others]
    level, sharing = 0.0, busy
    while True:  # lanes whose reservation exceeds their weight's share keep it; the rest share
        left = 1 - sum(lane.reserved for lane in busy if lane not in sharing)
        level = left / sum(lane.weight for lane in sharing)
        enough = [lane for lane in sharing if lane.reserved <= level * lane.weight]
        if len(enough) in (0, len(sharing)):
            return [max(lane.reserved, level * lane.weight) for lane in busy]
        sharing = enough
