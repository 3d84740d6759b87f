"""Rules about when calls start and end: retries, rates, fairness, bounds, batches.

A rule that cannot know better (waits are shortened at random) allows what might be right and
refuses what cannot be.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from tests.engine.model_driver import Call, Drive, End, Step
from tests.engine.model_facts import EPSILON, Facts, Rule, results_of
from thulawa.engine.events import Cancel, Succeeded, Tick
from thulawa.engine.work_items import Ticket, WorkItem
from thulawa.errors import (
    AttemptTimedOut,
    DeadlineExceeded,
    Overload,
    Retriable,
    Terminal,
    WrongResult,
)


class RetryRule(Rule):
    """Attempts, backoff, timeouts and deadlines."""

    def __init__(self, of: Drive, facts: Facts) -> None:
        super().__init__(of, facts)
        self.failures: Counter[int] = Counter()
        self.overloads: Counter[int] = Counter()
        self.first: dict[int, float] = {}
        self.due: dict[int, float] = {}

    def after(self, step: Step) -> None:
        judged = not isinstance(step.event, Cancel) and self.of.aborted is None
        for end in step.ended if judged else ():
            self._judge(end, step.now)
        for call in step.started:
            for offset in call.offsets:
                assert offset in self.facts.pending, "started although final"
                first = self.first.setdefault(offset, step.now)
                assert step.now >= self.due.get(offset, 0) - EPSILON, "too early"
                assert step.now < first + (self.options.deadline or 1e9), "after its deadline"
        if isinstance(step.event, Tick) and not self.of.scheduler.state.stopped:
            for call in self.of.running.values():
                assert step.now < self._must_end_by(call) + EPSILON, "overdue"

    def _must_end_by(self, call: Call) -> float:
        timeout = call.at + (self.options.timeout or 1e9)
        deadline = min(self.first[o] for o in call.offsets) + (self.options.deadline or 1e9)
        return min(timeout, deadline)

    def _judge(self, end: End, now: float) -> None:
        tickets = end.call.tickets
        results = results_of(end)
        if end.abandoned:
            assert now >= self._must_end_by(end.call) - EPSILON, "abandoned too soon"
            late = [now >= self.first[o] + (self.options.deadline or 1e9) for o in end.call.offsets]
            timed_out = now >= end.call.at + (self.options.timeout or 1e9)
            slow: Exception = AttemptTimedOut("") if timed_out else Overload()
            results = [DeadlineExceeded("") if over else slow for over in late]
        whole = end.error is not None or (end.abandoned and len({*map(type, results)}) == 1)
        if whole and len(tickets) > 1 and not isinstance(results[0], Overload | DeadlineExceeded):
            self._judge_whole(tickets, results[0], now)
        else:
            self._judge_each(tickets, results, now)

    def _judge_each(self, tickets: Iterable[Ticket], results: list[Any], now: float) -> None:
        held = set()
        for ticket, result in zip(tickets, results, strict=True):
            is_final = ticket.record.offset in self.facts.now_final
            if ticket.queue in held:
                if is_final:
                    self._check_settled_since(ticket.record, now)
            elif not isinstance(result, Exception):
                assert is_final, "a success that is not final"
            else:
                allowed = self._may_be(ticket.record.offset, result, now)
                if is_final not in allowed:
                    assert is_final, f"{ticket} must not be retried after {result!r}"
                    self._check_settled_since(ticket.record, now)
                if True not in allowed or not is_final:
                    held.add(ticket.queue)

    def _check_settled_since(self, record: WorkItem, now: float) -> None:
        """Allow a record to be retried at once and fail by its key's quarantine in one step."""
        assert self.options.quarantine is not None, f"{record} is final too soon"
        assert self.due.get(record.offset, now) <= now, f"{record} is final too soon"
        self.facts.by_call.discard(record.offset)

    def _judge_whole(self, tickets: tuple[Ticket, ...], error: Exception, now: float) -> None:
        allowed = [self._may_be(ticket.record.offset, error, now) for ticket in tickets]
        alone = {ticket.solo for ticket in tickets}
        assert len(alone) == 1
        assert alone == {True} or {True} not in allowed, "not retried alone in the end"
        assert alone == {False} or {False} != set().union(*allowed), "retried alone too soon"
        for ticket in tickets:
            offset = ticket.record.offset
            if ticket.solo:
                self.failures[offset] = 0
                self.due[offset] = now
            if offset in self.facts.now_final:
                self._check_settled_since(ticket.record, now)

    def _may_be(self, offset: int, error: Exception, now: float) -> set[bool]:
        """Count a failure; return whether it may be final."""
        retry = self.options.retry
        if isinstance(error, Overload):
            self.overloads[offset] += 1
            times, least = self.overloads[offset], error.retry_after or 0.0
        else:
            self.failures[offset] += 1
            times, least = self.failures[offset], 0.0
            covered = isinstance(error, AttemptTimedOut | Retriable) or retry.covers(error)
            terminal = isinstance(error, Terminal | WrongResult | DeadlineExceeded)
            if terminal or not covered or times >= retry.attempts:
                return {True}
        soonest = now + max(least, retry.backoff(times, 1.0))
        latest = now + max(least, retry.backoff(times, 0.0))
        self.due[offset] = soonest
        deadline = self.first[offset] + (self.options.deadline or 1e9)
        return {soonest + EPSILON >= deadline, latest - EPSILON >= deadline}


class GateRule(Rule):
    """Rate limits and Retry-After; and no permit is idle without a reason."""

    def __init__(self, of: Drive, facts: Facts) -> None:
        super().__init__(of, facts)
        rate = of.options.rate
        self.per_second = 1e9 if rate is None else rate.per_second * rate.share
        self.burst = 1e9 if rate is None else max(1.0, rate.burst * rate.share)
        self.tokens = self.burst
        self.filled_at = 0.0
        self.closed_until = 0.0

    def after(self, step: Step) -> None:
        gained = (step.now - self.filled_at) * self.per_second
        self.tokens = min(self.burst, self.tokens + gained)
        self.filled_at = step.now
        if not self.of.cancelled:
            for end in step.ended:
                for result in results_of(end):
                    if isinstance(result, Overload) and result.retry_after:
                        until = step.now + result.retry_after
                        self.closed_until = max(self.closed_until, until)
        for _ in step.started:
            assert step.now >= self.closed_until - EPSILON, "before Retry-After"
            self.tokens -= 1
            assert self.tokens >= -EPSILON, "faster than the rate"
        if step.started:
            assert self._permits_used() <= self.of.scheduler.state.limit.permits, "no permit"
        self._check_nothing_idles(step.now)

    def _permits_used(self) -> int:
        return len(self.of.running) + len(self.of.abandoned)

    def _check_nothing_idles(self, now: float) -> None:
        scheduler = self.of.scheduler
        idle = self._permits_used() < scheduler.state.limit.permits
        if scheduler.state.stopped or not idle or not scheduler.state.ready.count:
            return
        closed = self.tokens < 1 - EPSILON or now < self.closed_until
        batch = self.options.batch
        lingers = batch is not None and batch.across_keys and batch.linger > 0
        ready = scheduler.state.ready.keys()
        fills = sum(map(len, ready)) < scheduler.state.max_batch() and not any(
            q.retries for q in ready
        )
        assert closed or (lingers and fills and not scheduler.state.draining), (
            "a ready key, a free permit, and nothing starts"
        )


class FairRule(Rule):
    """Among ready keys the oldest head first, given lanes, reservation and ageing."""

    def after(self, step: Step) -> None:
        on_the_way = self.facts.now_final - self.facts.by_call - self.facts.rejected
        if not on_the_way and not self.of.scheduler.state.stopped:
            ready = self.of.scheduler.state.ready.keys()
            left = [queue.next_record() for queue in ready]
            self._check(step, [record for record in left if record is not None])

    def _check(self, step: Step, left: list[WorkItem]) -> None:
        started = [call.tickets[0].record for call in step.started]
        before = Counter(lead.record.lane for lead in (*self.of.running, *self.of.abandoned))
        before.subtract(record.lane for record in started)
        for place, record in enumerate(started):
            waiting = started[place + 1 :] + left
            ageing = self.options.lanes.ageing
            if ageing is None or not any(
                step.now - other.arrived >= ageing for other in (record, *waiting)
            ):
                self._check_turn(record, waiting, before)
            elif self.options.batch is None:
                assert record.arrived == min(other.arrived for other in (record, *waiting)), (
                    "one that has aged was passed over"
                )
            before[record.lane] += 1

    def _check_turn(self, record: WorkItem, waiting: list[WorkItem], running: Counter[int]) -> None:
        same = [other.timestamp for other in waiting if other.lane == record.lane]
        assert record.timestamp <= min(same, default=record.timestamp), "an older head waits"
        if len(self.options.lanes.lanes) == 1 or self.options.batch is not None:
            return
        busy = {other.lane for other in waiting} | {record.lane}
        permits = self.of.scheduler.state.limit.permits
        short = [
            index
            for index, lane in enumerate(self.options.lanes.lanes)
            if index in busy and running[index] + 1 <= lane.reserved * permits + EPSILON
        ]
        if short:
            assert record.lane == short[0], "a reservation was passed over"
        elif self.options.lanes.strict:
            owed = {index for index in busy if self.options.lanes.lanes[index].reserved}
            assert record.lane in owed | {min(busy)}, "a more urgent lane was passed over"


class BoundsRule(Rule):
    """Records, bytes, keys and parked stay within their bounds; intake has hysteresis."""

    def __init__(self, of: Drive, facts: Facts) -> None:
        super().__init__(of, facts)
        self.closed = False
        bounds = of.options.bounds
        self.parked_bytes = bounds.bytes * min(bounds.parked, bounds.records) // bounds.records

    def after(self, step: Step) -> None:
        bounds = self.options.bounds
        sizes = [self.facts.arrived[offset].size for offset in self.facts.unfinished]
        largest = max((record.size for record in self.facts.arrived.values()), default=0)
        assert len(sizes) <= bounds.records + bounds.parked
        assert sum(sizes) < bounds.bytes + self.parked_bytes + max(1, largest)
        records, size, keys = self._fresh(sizes)
        low = bounds.resume_at
        is_low = (
            records <= low * bounds.records and size <= low * bounds.bytes
        ) and keys <= low * bounds.keys
        if step.pull is not None:
            assert not self.of.scheduler.state.draining, "pulled while draining"
            assert 0 < step.pull.records <= bounds.records - records
            assert step.pull.records <= bounds.keys - keys
            assert 0 < step.pull.bytes <= bounds.bytes - size
            assert is_low or not self.closed, "resumed too soon"
        if self.of.pull is not None:
            self.closed = False
        elif not isinstance(step.event, Succeeded):
            self.closed = True
            over = self.of.scheduler.state.draining or self.of.scheduler.state.stopped
            assert over or not is_low, "intake is closed for no reason"

    def _fresh(self, sizes: list[int]) -> tuple[int, int, int]:
        """Return the records, bytes and keys held, less what is parked within its allowance."""
        queues, allowed = self.of.scheduler.state.queues.values(), self.options.bounds.parked
        parked = [t.record.size for q in queues for t in list(q.retries or ())[: q.parked]]
        parked_keys = sum(queue.parked > 0 for queue in queues)
        tracked = {"key": queues, "emit": self.of.scheduler.state.emission.by_key or {}}
        keys = len(tracked.get(self.options.order, ()))
        keys = max(0, keys - min(parked_keys, allowed))
        records = len(sizes) - min(len(parked), allowed)
        return records, sum(sizes) - min(sum(parked), self.parked_bytes), keys


class BatchRule(Rule):
    """Batches of allowed size and composition, and none before its time."""

    def after(self, step: Step) -> None:
        batch = self.options.batch
        for call in step.started:
            if batch is None:
                assert len(call.tickets) == 1
                continue
            assert len(call.tickets) <= self.of.scheduler.state.max_batch() <= batch.size
            assert len(call.tickets) == 1 or not any(ticket.solo for ticket in call.tickets)
            assert batch.across_keys or len({ticket.queue for ticket in call.tickets}) == 1
            assert call.offsets == sorted(call.offsets) or batch.across_keys
            if self._lingers(call):
                waited = step.now - min(ticket.record.arrived for ticket in call.tickets)
                assert waited >= batch.linger - EPSILON, "started before its linger was over"

    def _lingers(self, call: Call) -> bool:
        batch = self.options.batch
        assert batch is not None
        fixed = batch.target is None and self.options.single_flight is None
        fresh = all(ticket.attempt == 1 for ticket in call.tickets)
        queue = call.lead.queue
        partial = len(call.tickets) < batch.size and queue.head is None
        alone = not batch.across_keys and self.options.quarantine is None
        return fixed and fresh and partial and alone and not self.of.scheduler.state.draining
