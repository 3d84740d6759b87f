"""What becomes of the records of a call: a result is final, or tickets are parked.

A key is released only when its result is final. Of a batch, each key's records before the first
one that is to be retried stand; that one and those after it are parked together at the head of
their key and keep their order. What is final leaves as soon as the order contract allows it.
"""

from collections.abc import Sequence
from typing import Any

from thulawa.core.errors import BadKey, BadLane, Quarantined
from thulawa.engine.events import Abort
from thulawa.engine.model import Outcome, Ticket
from thulawa.engine.queues import KeyQueue
from thulawa.engine.state import Plan, State

__all__ = ["Settling"]


class Settling(State):
    """A scheduler that can settle records."""

    __slots__ = ()

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
            if self.several_lanes:
                self.by_lane[record.lane].add(self.now - record.taken)
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
            # one that was refused may name a lane that there is not
            if self.several_lanes and 0 <= record.lane < len(self.by_lane):
                self.by_lane[record.lane].add(self.now - record.taken)
            if released.error is not None and self.options.on_error == "drop":
                self.counters.dropped += 1
                self.emission.finish([record])
            else:
                self.outcomes.append(released)
