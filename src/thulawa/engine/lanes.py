"""Among the ready keys, whose turn it is.

One heap per lane, ordered by head timestamp. Which lane goes next, in this order:

1. that of a ready key whose head came ``ageing`` seconds ago, of several the one that came first;
2. the first lane with fewer calls in flight than there are whole permits in its reserved part;
3. of the lanes that have a share, the one that is furthest behind it (stride scheduling: each
   start moves a lane on by 1 / share).

A lane's share is the part of the starts that is its own while the same lanes have work: by weight,
but not less than its reserved part; of strict lanes the first has all that the others do not
reserve. Permits are whole, and shares of them are not: what 2. cannot give, 3. gives in the course
of time. The two agree, for no share is less than what is reserved. (Rounding up what is reserved
was tried: with few permits, or many lanes, the last lanes had nothing.) A lane that was idle is
moved up to the others, so that it cannot save up turns; one that had more than its share, by
reservation, by age or because its calls are short, is held back for a few rounds at most.

Priority chooses between keys only: within a key records keep their order. With one lane and
no ageing this is a plain heap. With ageing each key also stands in a heap by the time at which its
head came, for one that waited behind others of its key has waited too; whichever of the two gives
it out first wins, and the other entry is recognised as stale by its stamp. Stale entries are swept
out when they outnumber the live ones.
"""

from heapq import heapify, heappop, heappush
from math import inf
from typing import TypeAlias

from thulawa.engine.options import Lane, Lanes
from thulawa.engine.queues import KeyQueue

__all__ = ["ReadyKeys"]

_Entry: TypeAlias = tuple[float, int, KeyQueue]

_SLACK = 64
_HAIR = 1e-9  # 29 % of 100 permits are 28.999999999999996
_ROUNDS = 4  # fewer let chance decide where calls differ in length


class _Queue:
    """The ready keys of one lane."""

    __slots__ = (
        "count",
        "heap",
        "in_flight",
        "most",
        "reserved",
        "step",
        "turn",
        "weight",
        "whole",
    )

    def __init__(self, lane: Lane) -> None:
        self.heap: list[_Entry] = []
        self.weight = lane.weight
        self.reserved = lane.reserved
        # what it has among the lanes that have work
        self.step = 0.0  # 1 / its share, 0: it has none
        self.most = 0.0  # that it may be ahead
        self.whole = 0  # permits that are reserved
        self.turn = 0.0
        self.count = 0
        self.in_flight = 0


class ReadyKeys:
    """The keys that may start a call, and the choice between them."""

    def __init__(self, options: Lanes) -> None:
        self._lanes = [_Queue(lane) for lane in options.lanes]
        self._first = self._lanes[0]
        self._strict = options.strict
        self._ageing = options.ageing
        self._plain = len(self._lanes) == 1 and options.ageing is None
        self._line: list[_Entry] = []
        self._busy: list[_Queue] = []
        self._permits = 0
        self._sequence = 0
        self._turn = 0.0
        self.count = 0
        self.now = 0.0

    def __len__(self) -> int:
        return self.count

    def add(self, queue: KeyQueue) -> None:
        """Make a key ready; it must not be ready already."""
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
            heappush(self._line, (record.taken, stamp, queue))
            lane.heap = _swept(lane.heap, lane.count)
            self._line = _swept(self._line, self.count)
        lane.count += 1

    def add_all(self, queues: list[KeyQueue]) -> None:
        """Make several keys ready."""
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
        entries.sort()  # what is sorted is a heap
        self._first.heap = entries
        self._sequence = stamp
        self.count = len(entries)

    def take(self, most: int) -> list[KeyQueue]:
        """Give out as many keys as are ready, in turn; there must be one lane."""
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
        """Give out the key whose turn it is; there must be one."""
        self.count -= 1
        if self._plain:
            queue = heappop(self._first.heap)[2]
            queue.stamp = 0
            return queue
        chosen = self._choose(permits)
        queue = self._aged() or self._pop_from(chosen)
        record = queue.next_record()
        assert record is not None
        lane = self._lanes[record.lane]
        lane.count -= 1
        lane.turn += lane.step
        queue.stamp = 0
        return queue

    def started(self, lane: int) -> None:
        """Count a call of this lane as in flight."""
        self._lanes[lane].in_flight += 1

    def finished(self, lane: int) -> None:
        """Count a call of this lane as over."""
        self._lanes[lane].in_flight -= 1

    def in_flight(self) -> list[int]:
        """Give the calls in flight, lane by lane."""
        return [lane.in_flight for lane in self._lanes]

    def keys(self) -> list[KeyQueue]:
        """List the ready keys, in no particular order."""
        return [entry[2] for lane in self._lanes for entry in lane.heap if _is_live(entry)]

    def _choose(self, permits: int) -> _Queue:
        """Give the lane whose turn it is; see to it that none is too far behind or ahead."""
        busy = [lane for lane in self._lanes if lane.count]
        if busy != self._busy or permits != self._permits:
            self._share_out(busy, permits)
        last, first = self._turn, inf
        short = next_ = None
        for lane in busy:
            if lane.in_flight < lane.whole and short is None:
                short = lane
            if not lane.step:
                continue
            turn = lane.turn
            if turn < last:
                lane.turn = turn = last
            elif turn > last + lane.most:
                lane.turn = turn = last + lane.most
            if turn < first:
                first, next_ = turn, lane
        self._turn = first
        chosen = short or next_
        assert chosen is not None
        return chosen

    def _share_out(self, busy: list[_Queue], permits: int) -> None:
        """Say what each lane with work has of so many permits."""
        self._busy, self._permits = busy, permits
        for lane, share in zip(busy, _shares(busy, strict=self._strict), strict=True):
            lane.step = 1 / share if share > _HAIR else 0.0
            lane.whole = int(lane.reserved * permits + _HAIR)
            lane.most = _ROUNDS * (permits + lane.step)

    def _pop_from(self, lane: _Queue) -> KeyQueue:
        while True:
            _, stamp, queue = heappop(lane.heap)
            if queue.stamp == stamp:
                return queue

    def _aged(self) -> KeyQueue | None:
        if self._ageing is None:
            return None
        line = self._line
        while not _is_live(line[0]):
            heappop(line)
        return heappop(line)[2] if self.now - line[0][0] >= self._ageing else None


def _swept(heap: list[_Entry], count: int) -> list[_Entry]:
    """Give a heap of so many live entries without the stale ones, once they are the larger part."""
    if len(heap) <= 2 * count + _SLACK:
        return heap
    live = [entry for entry in heap if _is_live(entry)]
    heapify(live)
    return live


def _is_live(entry: _Entry) -> bool:
    return entry[2].stamp == entry[1]


def _shares(busy: list[_Queue], *, strict: bool) -> list[float]:
    """Give the part of each lane with work: what it reserves, and its part of the rest."""
    if strict:
        others = [lane.reserved for lane in busy[1:]]
        return [1 - sum(others), *others]
    level, sharing = 0.0, busy
    while True:  # by weight, without those who have more by reservation
        left = 1 - sum(lane.reserved for lane in busy if lane not in sharing)
        level = left / sum(lane.weight for lane in sharing)
        enough = [lane for lane in sharing if lane.reserved <= level * lane.weight]
        if len(enough) in (0, len(sharing)):
            return [max(lane.reserved, level * lane.weight) for lane in busy]
        sharing = enough
