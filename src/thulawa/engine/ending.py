"""What becomes of a call that ended: results are final, or tickets are parked.

A key is released only here, when its result is final. Of a batch, each key's records before
the first one that is to be retried stand; that one and those after it are parked together at
the head of their key and keep their order.

A call that takes too long is abandoned: its records are judged at once, but it may run on for a
while, so it keeps its permit and its keys until it is reported gone.
"""

from collections.abc import Sequence
from itertools import takewhile
from math import inf
from typing import Any

from thulawa.core.errors import (
    AttemptTimedOut,
    BadKey,
    BadLane,
    DeadlineExceeded,
    Overload,
    Quarantined,
    SelfCancelled,
    WrongResult,
)
from thulawa.engine.events import Abandon, Abort, Answered, Failed, Gone, Succeeded
from thulawa.engine.limits import Verdict
from thulawa.engine.model import Outcome, Ticket
from thulawa.engine.queues import KeyQueue
from thulawa.engine.state import ABANDONED, Plan, State

__all__ = ["Ending"]


class Ending(State):
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
        calls, queues, now = self.calls, self.queues, self.now
        took, stayed, leave = self.latency.add, self.residence.add, self.outcomes.append
        freed: list[KeyQueue] = []
        for ticket, attempt, result in answers:
            if calls.get(ticket) != attempt:
                self.gone(ticket, attempt)
                continue
            del calls[ticket]
            if ticket.timer is not None:
                self.timers.cancel(ticket.timer)
                ticket.timer = None
            record, queue = ticket.record, ticket.queue
            took(now - ticket.started)
            stayed(now - record.taken)
            leave(Outcome(record, result, None, attempt))
            queue.taken = 0
            if queue.head is None and not queue.retries:
                del queues[queue.key]
            else:
                freed.append(queue)
        self.counters.succeeded += len(self.outcomes)
        if freed and not self.stopped:
            self.ready.add_all(freed)

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

    def whole_batch_failed(self, members: list[Ticket], error: Exception) -> Plan:
        """Nobody knows whose fault it is: all wait together, or else are tried one by one."""
        times = [self.judge.retry_at(ticket, error, self.now) for ticket in members]
        when = self.now
        if None in times:
            for ticket in members:
                ticket.solo = True
                ticket.failures = 0
        else:
            when = max(when for when in times if when is not None)
        groups: dict[KeyQueue, list[Ticket]] = {}
        for ticket in members:
            groups.setdefault(ticket.queue, []).append(ticket)
        return {queue: (group, when) for queue, group in groups.items()}

    def settle(self, members: list[Ticket], results: Sequence[Any]) -> Plan:
        """Decide on each record of a call; of each key the prefix before a retry stands."""
        plan: Plan = {}
        for ticket, result in zip(members, results, strict=True):
            retry = plan.setdefault(ticket.queue, None)
            if self.stopped:
                ticket.queue.put_back([ticket])
            elif retry is not None:
                retry[0].append(ticket)
            elif not isinstance(result, Exception):
                self.succeed(ticket, result)
            elif (when := self.judge.retry_at(ticket, result, self.now)) is None:
                self.give_up(ticket, result)
            else:
                plan[ticket.queue] = ([ticket], when)
        return plan

    def let_go(self, plan: Plan) -> None:
        """Let the keys of a call that is over go on."""
        for queue, retry in plan.items():
            if retry is None:
                self.release(queue)
            else:
                queue.put_back(retry[0])
                self.park(queue, *retry)

    def park(self, queue: KeyQueue, tickets: list[Ticket], when: float) -> None:
        """Have the tickets at the head of a key wait until it is time to try again."""
        queue.taken = 0
        queue.parked = len(tickets)
        self.counters.retries += len(tickets)
        self.ledger.park(len(tickets), queue.parked_bytes())
        self.timers.add(when, self.unpark, queue)

    def unpark(self, queue: KeyQueue) -> None:
        """Let a key go on whose time has come."""
        self.ledger.unpark(queue.parked, queue.parked_bytes())
        queue.parked = 0
        self.make_ready(queue)

    def succeed(self, ticket: Ticket, result: Any) -> None:
        """End a record, and those who asked the same, with a result."""
        self.counters.succeeded += 1
        record = ticket.record
        outcome = Outcome(record, result, None, ticket.attempt)
        if self.emission.reorders:
            self.leave(outcome)
        else:
            self.residence.add(self.now - record.taken)
            self.outcomes.append(outcome)
        if self.plain:
            return
        if self.failing is not None:
            self.failing.succeeded(record.key)
        if ticket.followers is not None and self.answers is not None:
            self.answers.keep(ticket.question, result)
            for follower in self.answers.settle(ticket):
                self.following -= 1
                self.succeed(follower, result)
                self.release(follower.queue)

    def give_up(self, ticket: Ticket, error: Exception) -> None:
        """End a record, and those who asked the same, by the error policy."""
        error = self.judge.final(ticket, error)
        if self.options.on_error == "fail":
            ticket.queue.put_back([ticket])
            if not self.stopped:
                self.stopped = True
                self.others.append(Abort(self.judge.story(ticket, error)))
            return
        self.counters.failed += 1
        key = ticket.record.key
        if (
            self.failing is not None
            and key is not None
            and not isinstance(error, Quarantined | BadKey | BadLane)
        ):
            self.failing.failed(key, self.now)
        self.leave(Outcome(ticket.record, None, error, ticket.attempt))
        if ticket.followers is not None and self.answers is not None:
            for follower in self.answers.settle(ticket):
                self.following -= 1
                if isinstance(error, Quarantined):  # no answer to what it asked
                    follower.queue.put_back([follower])
                else:
                    self.give_up(follower, self.judge.for_follower(follower, error))
                self.release(follower.queue)

    def leave(self, outcome: Outcome) -> None:
        """Let a final result out, as soon as the order contract allows it."""
        for released in self.emission.leave(outcome):
            record = released.record
            self.residence.add(self.now - record.taken)
            if released.error is not None and self.options.on_error == "drop":
                self.counters.dropped += 1
                self.emission.finish([record])
            else:
                self.outcomes.append(released)


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
