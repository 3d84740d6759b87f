"""What becomes of a call: it returned, it raised, or it took too long.

What its records go on with is in `settling`. A call that takes too long is abandoned: its records
are judged at once, but it may run on for a while, so it keeps its permit and its keys until it is
reported gone.
"""

from collections.abc import Sequence
from itertools import takewhile
from math import inf
from typing import Any

from thulawa.core.errors import (
    AttemptTimedOut,
    DeadlineExceeded,
    Overload,
    SelfCancelled,
    WrongResult,
)
from thulawa.engine.events import Abandon, Answered, Failed, Gone, Succeeded
from thulawa.engine.limits import Verdict
from thulawa.engine.model import Outcome, Ticket
from thulawa.engine.queues import KeyQueue
from thulawa.engine.retrying import Settling
from thulawa.engine.state import ABANDONED, Plan

__all__ = ["Ending"]


class Ending(Settling):
    """A scheduler that can end calls."""

    __slots__ = ()

    def on_succeeded(self, event: Succeeded) -> None:
        """End calls that returned."""
        if self.bare:
            self.all_succeeded(event.answers)
            return
        calls = self.calls
        for ticket, attempt, result in event.answers:
            if calls.get(ticket) != attempt:
                self.gone(ticket, attempt)
                continue
            self.learn(ticket, "success")
            self.free(ticket)
            self.succeed(ticket, result)
            self.release(ticket.queue)

    def all_succeeded(self, answers: Sequence[tuple[Ticket, int, Any]]) -> None:
        """Do the same where there is nothing to learn, to share or to reorder.

        One loop without calls, for it is what most events are (figures in docs/adr/0010).
        """
        calls, queues, now, timed = self.calls, self.queues, self.now, self.timed
        leave = self.outcomes.append
        freed: list[KeyQueue] = []
        started, since, count = 0.0, 0.0, 0  # calls that began and came together count together
        for ticket, attempt, result in answers:
            if calls.get(ticket) != attempt:
                self.gone(ticket, attempt)
                continue
            del calls[ticket]
            if timed and ticket.timer is not None:
                self.timers.cancel(ticket.timer)
                ticket.timer = None
            record, queue = ticket.record, ticket.queue
            if ticket.started == started and record.taken == since:
                count += 1
            else:
                self._measured(now - started, now - since, count)
                started, since, count = ticket.started, record.taken, 1
            leave(Outcome(record, result, None, attempt))
            queue.taken = 0
            if queue.head is None and not queue.retries:
                del queues[queue.key]
            else:
                freed.append(queue)
        self._measured(now - started, now - since, count)
        self.counters.succeeded += len(self.outcomes)
        if freed and not self.stopped:
            self.ready.add_all(freed)

    def _measured(self, latency: float, residence: float, calls: int) -> None:
        """Take note of calls that took equally long, from the start and from the beginning."""
        if calls:
            self.latency.add_all(latency, calls)
            self.residence.add_all(residence, calls)

    def on_failed(self, event: Failed) -> None:
        """End a call that raised."""
        if self.calls.get(event.ticket) != event.attempt:
            self.gone(event.ticket, event.attempt)
            return
        plan = self.call_failed(event.ticket, event.error)
        self.free(event.ticket)
        self.let_go(plan)

    def on_answered(self, event: Answered) -> None:
        """End a call over a batch that returned."""
        lead = event.ticket
        if self.calls.get(lead) != event.attempt:
            self.gone(lead, event.attempt)
            return
        members, results = lead.members(), event.results
        problem = _misfit(results, len(members))
        if problem is not None:
            results = [WrongResult(problem) for _ in members]
        results = [_as_error(result) for result in results]
        overloads = [error for error in results if isinstance(error, Overload)]
        failed = any(isinstance(result, Exception) for result in results)
        self.learn(lead, "overload" if overloads else "failure" if failed else "success")
        self.free(lead)
        for overload in overloads:
            self.overloaded(overload)
        self.let_go(self.settle(members, results))

    def on_gone(self, event: Gone) -> None:
        """Take note that an abandoned call runs no more."""
        self.gone(event.ticket, event.attempt)

    def gone(self, lead: Ticket, attempt: int) -> None:
        """Let the keys of an abandoned call go on; nothing if that was known."""
        if lead.attempt != attempt or lead not in self.abandoned:
            return
        plan = self.abandoned.pop(lead)
        self.free(lead)
        for queue, retry in plan.items():
            if retry is None:
                self.release(queue)
            else:
                self.park(queue, *retry)

    def overdue(self, lead: Ticket) -> None:
        """Abandon a call that took too long."""
        lead.timer = None
        self.counters.timeouts += 1
        self.others.append(Abandon(lead, lead.attempt))
        members = lead.members()
        late = [self.judge.deadline(ticket) <= self.now for ticket in members]
        slow = f"no answer after {self.now - lead.started:.3g} s"
        if not any(late):
            self.hold(lead, self.call_failed(lead, AttemptTimedOut(slow)))
            return
        self.learn(lead, "overload")
        timeout = self.options.timeout
        results: list[Exception] = []
        for over in late:
            if over:
                ended = f"no answer by the deadline of {self.options.deadline} s"
                results.append(DeadlineExceeded(ended))
            elif timeout is not None and self.now >= lead.started + timeout:
                results.append(AttemptTimedOut(slow))
            else:  # not its failure, so not counted as one
                results.append(Overload("the call was ended by the deadline of another record"))
        self.hold(lead, self.settle(members, results))

    def hold(self, lead: Ticket, plan: Plan) -> None:
        """Keep the permit and the keys of an abandoned call until it is gone."""
        self.calls[lead] = ABANDONED
        self.abandoned[lead] = plan
        for queue, retry in plan.items():
            queue.taken = 1
            if retry is not None:
                queue.put_back(retry[0])
        self.await_deadline(lead)

    def await_deadline(self, lead: Ticket) -> None:
        """Look after an abandoned call again when the first of its retries is too late."""
        heads = [retry[0][0] for retry in self.abandoned[lead].values() if retry is not None]
        when = min(map(self.judge.deadline, heads), default=inf)
        if when < inf:
            lead.timer = self.timers.add(when, self.waited_too_long, lead)

    def waited_too_long(self, lead: Ticket) -> None:
        """Give up what was to be retried, had the abandoned call been gone in time."""
        lead.timer = None
        plan = self.abandoned[lead]
        ended = f"its call did not stop by the deadline of {self.options.deadline} s"
        for queue, retry in plan.items():
            tickets, when = retry or ([], inf)
            late = list(takewhile(lambda t: self.judge.deadline(t) <= self.now, tickets))
            for _ in late:
                self.give_up(queue.pop(), DeadlineExceeded(ended))
            rest = tickets[len(late) :]
            plan[queue] = (rest, when) if rest else None
        if not self.stopped:
            self.await_deadline(lead)

    def learn(self, lead: Ticket, verdict: Verdict) -> None:
        """Learn from a call, which still has its permit."""
        latency = self.now - lead.started
        self.latency.add(latency)
        if self.adapts:
            self.limit.observe(latency, verdict, len(self.calls), self.now)
        if lead.batch is not None:
            if verdict == "success" and self.batch_size is not None:
                self.batch_size.observe(len(lead.batch), latency)
            lead.batch = None

    def free(self, lead: Ticket) -> None:
        """Give the permit of a call back."""
        del self.calls[lead]
        if lead.timer is not None:
            self.timers.cancel(lead.timer)
            lead.timer = None
        if self.several_lanes:
            self.ready.finished(lead.record.lane)

    def call_failed(self, lead: Ticket, error: Exception) -> Plan:
        """Decide on all records of a call that raised."""
        members = lead.members()
        self.learn(lead, self.judge.verdict(error))
        if isinstance(error, Overload):
            self.overloaded(error)
        if len(members) == 1 or isinstance(error, Overload):
            return self.settle(members, [error] * len(members))
        return self.whole_batch_failed(members, error)

    def overloaded(self, error: Overload) -> None:
        """Start nothing before the other side wants to hear of us again."""
        self.counters.overloads += 1
        if error.retry_after:
            self.gated = self.equipped = True
            self.bucket.close_until(self.now + error.retry_after)


def _as_error(result: Any) -> Any:
    """Give a result as it is; what no handler of errors would catch becomes one."""
    if not isinstance(result, BaseException) or isinstance(result, Exception):
        return result
    error = SelfCancelled(f"a record's answer was {type(result).__name__}")
    error.__cause__ = result
    return error


def _misfit(results: object, wanted: int) -> str | None:
    """Say what is wrong with the answer to a batch, if anything is."""
    if not isinstance(results, list | tuple):
        return f"a batch function must return a list, not {type(results).__name__}"
    if len(results) != wanted:
        return f"a batch of {wanted} records got {len(results)} results"
    return None
