"""Which call starts next, and what needs no call.

A permit is taken before a record leaves its queue. What does not need a call (its key is in
quarantine, its deadline has passed, its answer is known, its question is being asked already)
is settled on the way, but only while nothing of its key is taken up: it must not overtake.
"""

from collections.abc import Hashable, MutableMapping
from random import Random
from typing import Any

from thulawa.core.errors import DeadlineExceeded, Quarantined
from thulawa.engine.completion import Ending
from thulawa.engine.model import Record, Ticket
from thulawa.engine.options import Options
from thulawa.engine.queues import KeyQueue
from thulawa.engine.single_flight import MISSING
from thulawa.engine.state import Memory
from thulawa.engine.timers import Timer

__all__ = ["Starting"]


class Starting(Ending):
    """A scheduler that can start calls."""

    __slots__ = ("_batch_timer", "_gate_timer")

    def __init__(
        self,
        options: Options,
        *,
        memory: Memory | None = None,
        cache: MutableMapping[Hashable, Any] | None = None,
        random: Random | None = None,
    ) -> None:
        super().__init__(options, memory=memory, cache=cache, random=random)
        self._gate_timer: Timer | None = None
        self._batch_timer: Timer | None = None

    def dispatch(self) -> None:
        """Start all calls that may start now."""
        ready, calls, limit = self.ready, self.calls, self.limit
        if self.plain and not (self.gated or self.several_lanes):
            self._start_many(limit.permits - len(calls))
            return
        while ready.count and len(calls) < limit.permits and not self.stopped:
            if self.gated and self._gate_is_closed():
                return
            if self.batch_size is None:
                self._start_one()
            elif not self.across:
                self._start_same_key()
            elif self._batch_is_due():
                self._start_across_keys()
            else:
                return

    def start(self, leads: list[Ticket]) -> None:
        """Start the calls that these tickets stand for."""
        now, calls, batched = self.now, self.calls, self.batch_size is not None
        for lead in leads:
            lead.started = now
            lead.attempt = attempt = lead.attempt + 1
            calls[lead] = attempt
            if batched and lead.batch is not None:
                for ticket in lead.batch[1:]:
                    ticket.attempt += 1
        self.starts.extend(leads)
        if self.equipped:
            for lead in leads:
                self._equip(lead)

    def call_off(self, leads: list[Ticket]) -> None:
        """Undo starts that nobody has heard of yet: the run has failed in the same step."""
        for lead in reversed(leads):
            self.free(lead)
            for ticket in reversed(lead.members()):
                ticket.attempt -= 1
                ticket.queue.taken = 0
                ticket.queue.put_back([ticket])
            lead.batch = None

    def _equip(self, lead: Ticket) -> None:
        """Do for a call that starts what not every engine asks for."""
        if self.gated:
            self.bucket.take()
        if self.several_lanes:
            self.ready.started(lead.record.lane)
        if self.timed:
            self._set_timer(lead)

    def _set_timer(self, lead: Ticket) -> None:
        members = lead.members()
        for ticket in members:
            if ticket.first_started < 0:
                ticket.first_started = self.now
        when = min(map(self.judge.deadline, members))
        if self.options.timeout is not None:
            when = min(when, self.now + self.options.timeout)
        lead.timer = self.timers.add(when, self.overdue, lead)

    def _gate_is_closed(self) -> bool:
        when = self.bucket.ready_at(self.now)
        if when <= self.now:
            return False
        if self._gate_timer is None:
            self._gate_timer = self.timers.add(when, self._gate_opens)
        return True

    def _gate_opens(self, _: None) -> None:
        self._gate_timer = None

    def _pop_ready(self) -> KeyQueue:
        queue = self.ready.pop(self.limit.permits)
        if self.across:
            self.ready_records -= len(queue)
        return queue

    def _start_many(self, free: int) -> None:
        """Start a call of each ready key, where no call needs anything but a permit.

        In bulk, for this is what most engines do (figures in docs/adr/0010).
        """
        if free > 0:
            leads = []
            for queue in self.ready.take(free):
                queue.taken = 1
                if queue.retries:
                    leads.append(queue.pop())
                else:  # what `pop` does, without the call
                    record, rest = queue.head, queue.rest
                    assert record is not None
                    queue.head = rest.popleft() if rest else None
                    leads.append(Ticket(record, queue))
            self.start(leads)

    def _start_one(self) -> None:
        tickets: list[Ticket] = []
        if self._take(self._pop_ready(), tickets):
            self.start(tickets)

    def _start_same_key(self) -> None:
        queue = self._pop_ready()
        tickets: list[Ticket] = []
        size = self.size()
        while len(tickets) < size and self._take(queue, tickets):
            pass
        self._start_batch(tickets)

    def _batch_is_due(self) -> bool:
        if self.ready_records >= self.size() or self.draining or self.now >= self.batch_due:
            return True
        if self._batch_timer is None:
            self._batch_timer = self.timers.add(self.batch_due, self._batch_falls_due)
        return False

    def _batch_falls_due(self, _: None) -> None:
        self._batch_timer = None

    def _start_across_keys(self) -> None:
        """Take the heads of the oldest keys, then, if there is room, more of each in turn."""
        tickets: list[Ticket] = []
        size = self.size()
        turn: list[KeyQueue] = []
        aside: list[KeyQueue] = []
        while len(tickets) < size and self.ready.count:
            queue = self._pop_ready()
            if tickets and not _fits(queue, tickets):
                aside.append(queue)
            elif self._take(queue, tickets):
                turn.append(queue)
                if tickets[0].solo:
                    break
        while turn and len(tickets) < size:
            turn = [queue for queue in turn if len(tickets) < size and self._take(queue, tickets)]
        for queue in aside:
            self.make_ready(queue)
        self._start_batch(tickets)

    def _start_batch(self, tickets: list[Ticket]) -> None:
        if tickets:
            tickets[0].batch = tickets
            self.start(tickets[:1])

    def _take(self, queue: KeyQueue, tickets: list[Ticket]) -> bool:
        """Take up the head of a key for the call being formed; tell whether it joined it."""
        record = queue.next_record()
        if record is None or self.stopped or (tickets and not _fits(queue, tickets)):
            return False
        if self._in_quarantine(queue, record) or self._is_too_late(queue):
            return False
        if self.answers is not None and not _leads(queue):
            question = self._question(queue, record)
            if question is MISSING or self._answered(queue, question):
                return False
            ticket = queue.pop()
            self.answers.lead(ticket, question)
        else:
            ticket = queue.pop()
        queue.taken += 1
        tickets.append(ticket)
        return True

    def _in_quarantine(self, queue: KeyQueue, record: Record) -> bool:
        if self.failing is None or record.key is None:
            return False
        if not self.failing.blocked(record.key, self.now):
            return False
        if not queue.taken:
            self.give_up(queue.pop(), Quarantined("its key is in quarantine"))
            self.release(queue)
        return True

    def _is_too_late(self, queue: KeyQueue) -> bool:
        """Tell whether the head of a key waited for its turn until its deadline passed."""
        if not queue.retries or self.judge.deadline(queue.retries[0]) > self.now:
            return False
        if not queue.taken:
            late = f"the deadline of {self.options.deadline} s passed before another attempt"
            self.give_up(queue.pop(), DeadlineExceeded(late))
            self.release(queue)
        return True

    def _question(self, queue: KeyQueue, record: Record) -> Hashable:
        """Give what the head of a key asks for; `MISSING` where asking the user's code fails."""
        assert self.answers is not None
        try:
            return self.answers.question(record)
        except Exception as error:  # noqa: BLE001 the user's function may raise anything
            if not queue.taken:
                self.give_up(queue.pop(), error)
                self.release(queue)
            return MISSING

    def _answered(self, queue: KeyQueue, question: Hashable) -> bool:
        """Settle the head of a key without a call; tell whether it needs none."""
        assert self.answers is not None
        known = self.answers.known(question)
        leader = self.answers.leader(question)
        if known is MISSING and leader is None:
            return False
        if queue.taken:
            return True
        ticket = queue.pop()
        if leader is None:
            self.answers.hits += 1
            self.succeed(ticket, known)
            self.release(queue)
        else:
            self.answers.follow(ticket, leader)
            self.following += 1
            queue.taken = 1
        return True


def _leads(queue: KeyQueue) -> bool:
    """Tell whether the head of a key has asked its question already."""
    if not queue.retries:
        return False
    return queue.retries[0].followers is not None


def _fits(queue: KeyQueue, tickets: list[Ticket]) -> bool:
    """Tell whether the head of a key may join a call; what is tried alone joins none."""
    return not tickets[0].solo and not (queue.retries and queue.retries[0].solo)
