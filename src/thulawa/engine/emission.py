"""From a final result to a finished record: in which order results leave, and what is delivered.

Results leave as they come (``emit="finished"``), in the order of their key (``order="emit"``),
or in the order of the partition (``emit="partition"``). What waits for one before it still
counts as held. A record is finished, and the frontier may pass it, only when whoever took its
outcome has said that it is safe.
"""

from collections import deque
from collections.abc import Hashable

from thulawa.core.errors import BadKey
from thulawa.engine.ledger import Ledger
from thulawa.engine.model import Outcome, Record
from thulawa.engine.options import Options
from thulawa.engine.queues import KeyRule
from thulawa.engine.sequence import Frontier, InOrder

__all__ = ["Emission"]


class Emission:
    """Holds results back until they may leave, and records until they are finished."""

    __slots__ = (
        "_keys",
        "_ledger",
        "by_key",
        "by_partition",
        "frontier",
        "reorders",
        "undelivered",
    )

    def __init__(self, options: Options, ledger: Ledger, keys: KeyRule) -> None:
        self._ledger = ledger
        self._keys = keys
        self.frontier = Frontier()
        self.by_partition = InOrder() if options.emit == "partition" else None
        self.by_key: dict[Hashable, InOrder] | None = {} if options.order == "emit" else None
        self.reorders = self.by_partition is not None or self.by_key is not None
        self.undelivered: deque[Outcome] = deque()

    def expect(self, record: Record) -> None:
        """Note a record's place in the order in which results leave; may raise `BadKey`."""
        if self.by_partition is not None:
            self.by_partition.expect(record.offset)
        elif self.by_key is not None:
            key = self._keys.named(record)
            if key is not record:  # else unkeyed and parallel: it waits for nobody
                self.by_key.setdefault(key, InOrder()).expect(record.offset)

    def leave(self, outcome: Outcome) -> list[Outcome]:
        """Give the outcomes that may leave now that this one is final."""
        if self.by_partition is not None:
            return self.by_partition.finish(outcome.record.offset, outcome)
        if self.by_key is not None:
            return self._leave_by_key(self.by_key, outcome)
        return [outcome]

    def _leave_by_key(self, orders: dict[Hashable, InOrder], outcome: Outcome) -> list[Outcome]:
        try:
            key = self._keys.named(outcome.record)
        except BadKey:  # it was never expected
            return [outcome]
        order = orders.get(key)
        if order is None:
            return [outcome]
        released = order.finish(outcome.record.offset, outcome)
        if not order:
            del orders[key]
        return released

    def delivered(self, count: int) -> None:
        """Finish the oldest ``count`` records whose outcomes have left."""
        leave = self.undelivered.popleft
        self.finish([leave().record for _ in range(count)])

    def finish(self, records: list[Record]) -> None:
        """Finish records: they are no longer held and the frontier may pass them."""
        self._ledger.records -= len(records)
        self._ledger.bytes -= sum([record.size for record in records])
        self.frontier.finish([record.offset for record in records])

    def held_back(self) -> int:
        """Count the results that wait for one before them."""
        if self.by_partition is not None:
            return self.by_partition.buffered
        return sum(order.buffered for order in (self.by_key or {}).values())

    def unfinished(self) -> list[Record]:
        """List the records whose result is final and that are not finished."""
        orders = list((self.by_key or {}).values())
        if self.by_partition is not None:
            orders.append(self.by_partition)
        waiting = [outcome.record for order in orders for outcome in order.withheld()]
        return waiting + [outcome.record for outcome in self.undelivered]
