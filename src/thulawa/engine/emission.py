"""From a final result to a finished record: the order in which results are emitted.

Results are emitted as they finish (``emit="finished"``), in the order of their key
(``order="emit"``), or in the order of the partition (``emit="partition"``). A result in a reorder
buffer still counts as held. A record is finished, and the frontier may pass it, only when the
driver has reported its outcome as delivered. All operations are amortised O(1).
"""

from collections import deque
from collections.abc import Hashable, Sequence
from itertools import pairwise
from operator import lt
from typing import Any

from thulawa.engine.backpressure import Backpressure
from thulawa.engine.options import Options
from thulawa.engine.queues import KeyRule
from thulawa.engine.work_items import Outcome, WorkItem
from thulawa.errors import BadKey


class ReorderBuffer:
    """Offsets in the order expected, each finished once with a value that is returned in order."""

    __slots__ = ("_expected", "finished")

    def __init__(self) -> None:
        self._expected: deque[int] = deque()
        self.finished: dict[int, Any] = {}  # values that wait for an offset before theirs

    def __len__(self) -> int:
        return len(self._expected)

    def expect(self, offset: int) -> None:
        """Append an offset to the order."""
        self._expected.append(offset)

    def finish(self, offset: int, value: Any) -> list[Any]:
        """Finish an offset; return the values whose turn has come, in order."""
        expected = self._expected
        finished = self.finished
        if expected[0] != offset:
            finished[offset] = value
            return []
        expected.popleft()
        released = [value]
        while finished and expected[0] in finished:
            released.append(finished.pop(expected.popleft()))
        return released


class Frontier:
    """The records that arrived and are not finished, by offset.

    Finished offsets are not stored: behind one slow record their number is not bounded.
    """

    __slots__ = ("_last", "_newest", "unfinished")

    def __init__(self) -> None:
        self.unfinished: dict[int, WorkItem] = {}
        self._last = -1  # the last offset that arrived
        self._newest = -1  # the highest offset that is finished

    @property
    def frontier(self) -> int:
        """The offset below which everything is finished."""
        return next(iter(self.unfinished), self._last + 1)

    @property
    def lag(self) -> int:
        """The distance from the frontier to the highest finished offset."""
        return max(0, self._newest - self.frontier)

    def expect(self, records: Sequence[WorkItem]) -> None:
        """Add records that arrived; raise ValueError unless their offsets rise, from 0 on."""
        offsets = [record.offset for record in records]
        if not all(map(lt, [self._last, *offsets], offsets)):
            last, offset = next(pair for pair in pairwise([self._last, *offsets]) if not lt(*pair))
            raise ValueError(f"offset {offset} arrived after {last}: offsets must rise")
        self.unfinished.update(zip(offsets, records, strict=True))
        self._last = offsets[-1] if offsets else self._last

    def finish(self, offsets: Sequence[int]) -> None:
        """Finish offsets, in any order, each once."""
        unfinished = self.unfinished
        for offset in offsets:
            del unfinished[offset]
        self._newest = max(self._newest, max(offsets, default=-1))


class Emission:
    """Buffers results until they may be emitted, and outcomes until they are delivered."""

    __slots__ = {
        "_backpressure": "counts the records held",
        "_keys": "maps a record to its key",
        "by_key": 'reorder buffers of keys, with order="emit"',
        "by_partition": 'the reorder buffer of the partition, with emit="partition"',
        "frontier": "the records that are not finished",
        "reorders": "whether results pass a reorder buffer",
        "undelivered": "outcomes that were emitted and not delivered, oldest first",
    }

    def __init__(self, options: Options, backpressure: Backpressure, keys: KeyRule) -> None:
        self._backpressure = backpressure
        self._keys = keys
        self.frontier = Frontier()
        self.by_partition = ReorderBuffer() if options.emit == "partition" else None
        self.by_key: dict[Hashable, ReorderBuffer] | None = {} if options.order == "emit" else None
        self.reorders = self.by_partition is not None or self.by_key is not None
        self.undelivered: deque[Outcome] = deque()

    def expect(self, record: WorkItem) -> None:
        """Append a record to the emit order; may raise `BadKey`."""
        if self.by_partition is not None:
            self.by_partition.expect(record.offset)
        elif self.by_key is not None:
            key = self._keys.checked_key(record)
            if key is not record:  # else unkeyed="parallel": it has no order
                self.by_key.setdefault(key, ReorderBuffer()).expect(record.offset)

    def release(self, outcome: Outcome) -> list[Outcome]:
        """Return the outcomes that may be emitted now that this one is final."""
        if self.by_partition is not None:
            return self.by_partition.finish(outcome.record.offset, outcome)
        if self.by_key is None:
            return [outcome]
        try:
            key = self._keys.checked_key(outcome.record)
        except BadKey:  # it was rejected, never expected
            return [outcome]
        buffer = self.by_key.get(key)
        if buffer is None:
            return [outcome]
        released = buffer.finish(outcome.record.offset, outcome)
        if not buffer:
            del self.by_key[key]
        return released

    def delivered(self, count: int) -> None:
        """Finish the records of the oldest ``count`` undelivered outcomes."""
        popleft = self.undelivered.popleft
        self.finish([popleft().record for _ in range(count)])

    def finish(self, records: list[WorkItem]) -> None:
        """Finish records: they are no longer held and the frontier may pass them."""
        self._backpressure.records -= len(records)
        self._backpressure.bytes -= sum([record.size for record in records])
        self.frontier.finish([record.offset for record in records])

    def buffered(self) -> int:
        """Return the number of results in reorder buffers."""
        return sum(len(buffer.finished) for buffer in self._buffers())

    def unfinished(self) -> list[WorkItem]:
        """Return the records whose result is final and not delivered."""
        waiting = [
            outcome.record for buffer in self._buffers() for outcome in buffer.finished.values()
        ]
        return waiting + [outcome.record for outcome in self.undelivered]

    def _buffers(self) -> list[ReorderBuffer]:
        if self.by_partition is not None:
            return [self.by_partition]
        return list((self.by_key or {}).values())
