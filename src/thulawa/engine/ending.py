"""What becomes of a call that ended: results are final, or tickets are parked.

A key is released only here, when its result is final. Of a batch, each key's records before
the first one that is to be retried stand; that one and those after it are parked together at
the head of their key and keep their order.
"""

from collections.abc import Sequence
from typing import Any

from thulawa.core.errors import (
    AttemptTimedOut,
    BadKey,
    DeadlineExceeded,
    Overload,
    Quarantined,
    SelfCancelled,
    WrongResult,
)
from thulawa.engine.events import Abandon, Abort, Answered, Failed, Succeeded
from thulawa.engine.limits import Verdict
from thulawa.engine.model import Outcome, Ticket
from thulawa.engine.queues import KeyQueue
from thulawa.engine.state import State

__all__ = ["Ending"]


class Ending(State):
    """A scheduler that can end calls."""

    __slots__ = ()

    def on_succeeded(self, event: Succeeded) -> None:
        """End calls that returned."""
        calls = self.calls
        for ticket, attempt, result in event.answers:
            if ticket not in calls or ticket.attempt != attempt:
                continue  # abandoned meanwhile, and counted as failed
            self.end_call(ticket, "success")
            self.succeed(ticket, result)
            self.release(ticket.queue)

    def on_failed(self, event: Failed) -> None:
        """End a call that raised."""
        if event.ticket in self.calls and event.ticket.attempt == event.attempt:
            self.call_failed(event.ticket, event.error)

    def on_answered(self, event: Answered) -> None:
        """End a call over a batch that returned."""
        lead = event.ticket
        if lead not in self.calls or lead.attempt != event.attempt:
            return
        members, results = lead.members(), event.results
        problem = _misfit(results, len(members))
        if problem is not None:
            results = [WrongResult(problem) for _ in members]
        results = [_as_error(result) for result in results]
        overloads = [error for error in results if isinstance(error, Overload)]
        failed = any(isinstance(result, Exception) for result in results)
        self.end_call(lead, "overload" if overloads else "failure" if failed else "success")
        for overload in overloads:
            self.overloaded(overload)
        self.settle(members, results)

    def overdue(self, lead: Ticket) -> None:
        """Abandon a call that took too long."""
        lead.timer = None
        self.counters.timeouts += 1
        self.others.append(Abandon(lead, lead.attempt))
        members = lead.members()
        late = [self.judge.deadline(ticket) <= self.now for ticket in members]
        slow = f"no answer after {self.now - lead.started:.3g} s"
        if not any(late):
            self.call_failed(lead, AttemptTimedOut(slow))
            return
        self.end_call(lead, "overload")
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
        self.settle(members, results)

    def end_call(self, lead: Ticket, verdict: Verdict) -> None:
        """Give the permit back and learn from the call."""
        latency = self.now - lead.started
        self.latency.add(latency)
        if self.adapts:
            self.limit.observe(latency, verdict, len(self.calls), self.now)
        del self.calls[lead]
        if lead.timer is not None:
            self.timers.cancel(lead.timer)
            lead.timer = None
        if self.several_lanes:
            self.ready.finished(lead.record.lane)
        if lead.batch is not None:
            if verdict == "success" and self.batch_size is not None:
                self.batch_size.observe(len(lead.batch), latency)
            lead.batch = None

    def call_failed(self, lead: Ticket, error: Exception) -> None:
        """Decide on all records of a call that raised."""
        members = lead.members()
        self.end_call(lead, self.judge.verdict(error))
        if isinstance(error, Overload):
            self.overloaded(error)
        if len(members) == 1 or isinstance(error, Overload):
            self.settle(members, [error] * len(members))
        else:
            self.whole_batch_failed(members, error)

    def overloaded(self, error: Overload) -> None:
        """Start nothing before the other side wants to hear of us again."""
        self.counters.overloads += 1
        if error.retry_after:
            self.gated = self.equipped = True
            self.bucket.close_until(self.now + error.retry_after)

    def whole_batch_failed(self, members: list[Ticket], error: Exception) -> None:
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
        for queue, group in groups.items():
            self.park(queue, group, when)

    def settle(self, members: list[Ticket], results: Sequence[Any]) -> None:
        """Decide on each record of a call; of each key the prefix before a retry stands."""
        held: dict[KeyQueue, tuple[list[Ticket], float]] = {}
        for ticket, result in zip(members, results, strict=True):
            queue = ticket.queue
            if self.stopped:
                queue.put_back([ticket])
            elif queue in held:
                held[queue][0].append(ticket)
            elif not isinstance(result, Exception):
                self.succeed(ticket, result)
            elif (when := self.judge.retry_at(ticket, result, self.now)) is None:
                self.give_up(ticket, result)
            else:
                held[queue] = ([ticket], when)
        for queue in dict.fromkeys(ticket.queue for ticket in members):
            if queue in held:
                self.park(queue, *held[queue])
            else:
                self.release(queue)

    def park(self, queue: KeyQueue, tickets: list[Ticket], when: float) -> None:
        """Put tickets back at the head of their key until it is time to try again."""
        queue.put_back(tickets)
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
        self.succeeded += 1
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
            and not isinstance(error, Quarantined | BadKey)
        ):
            self.failing.failed(key, self.now)
        self.leave(Outcome(ticket.record, None, error, ticket.attempt))
        if ticket.followers is not None and self.answers is not None:
            for follower in self.answers.settle(ticket):
                self.following -= 1
                if isinstance(error, Quarantined):  # no answer to what it asked
                    follower.queue.put_back([follower])
                else:
                    self.give_up(follower, error)
                self.release(follower.queue)

    def leave(self, outcome: Outcome) -> None:
        """Let a final result out, as soon as the order contract allows it."""
        for released in self.emission.leave(outcome, self.key_of):
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
