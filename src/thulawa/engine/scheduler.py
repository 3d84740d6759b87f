"""The engine as a state machine without I/O: ``handle(event, now) -> instructions``.

It reads no clock, starts nothing and waits for nothing; whoever drives it carries out its
instructions and reports what happened. After the model of distributed's worker state machine.

The life of a record: it *arrives* and waits in its key's queue; when its key is ready and a
permit is free it is *taken up* with a ticket and a call *starts*; the call ends and the result
is final, or the ticket is *parked* at the head of its key and comes back later; a final result
*leaves*, through a reorder buffer where the contract asks for one; it is finished once it is
*delivered*. A permit is taken before a record leaves its queue, and a key is freed only when
its result is final.

Cost: O(log ready keys) a record. Nothing is ever searched for, and nothing polls.
"""

from collections.abc import Callable, Hashable, MutableMapping
from operator import attrgetter
from random import Random
from typing import Any

from thulawa.core.errors import BadKey, BadLane
from thulawa.engine.dispatch import Starting
from thulawa.engine.events import (
    Abandon,
    Answered,
    Arrived,
    Cancel,
    Delivered,
    Drain,
    Drained,
    Emit,
    Event,
    Failed,
    GiveBack,
    Gone,
    Instruction,
    Pull,
    Start,
    Succeeded,
    Tick,
    WakeAt,
)
from thulawa.engine.model import Outcome, Record, Ticket
from thulawa.engine.options import Options
from thulawa.engine.queues import KeyQueue
from thulawa.engine.snapshot import audit, picture
from thulawa.engine.state import ABANDONED, Memory
from thulawa.engine.statistics import Statistics

__all__ = ["Scheduler"]

_FOLD = 4_096


class Scheduler(Starting):
    """Decides which records run when, and when what they gave may leave."""

    __slots__ = ("_awake_at", "_handlers", "cancelled", "drained", "pulling")

    def __init__(
        self,
        options: Options,
        *,
        memory: Memory | None = None,
        cache: MutableMapping[Hashable, Any] | None = None,
        random: Random | None = None,
    ) -> None:
        super().__init__(options, memory=memory, cache=cache, random=random)
        self.pulling = False
        self.drained = False
        self.cancelled = False
        self._awake_at = float("inf")
        self._handlers: dict[type, Callable[[Any], None]] = {
            Arrived: self._on_arrived,
            Succeeded: self.on_succeeded,
            Answered: self.on_answered,
            Failed: self.on_failed,
            Gone: self.on_gone,
            Delivered: self._on_delivered,
            Tick: self._on_tick,
            Drain: self._on_drain,
            Cancel: self._on_cancel,
        }

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take in what happened; give what is to be done."""
        if now > self.now:
            self.now = self.ready.now = now
        starts: list[Ticket] = []
        outcomes: list[Outcome] = []
        others: list[Instruction] = []
        self.starts, self.outcomes, self.others = starts, outcomes, others
        if not self.cancelled or type(event) is Arrived:
            self._handlers[type(event)](event)
        if not self.stopped:
            if self.ready.count:
                self.dispatch()
            # what a success frees is, as a rule, room only once it is delivered
            if type(event) is not Succeeded or not outcomes:
                self._pull()
            self._announce()
        if self.stopped and starts:
            self.call_off(starts)
            starts = []
        if outcomes:
            self.emission.undelivered.extend(outcomes)
            others.append(Emit(outcomes))
        if starts:
            others.append(Start(starts))
        return others

    def statistics(self, now: float | None = None) -> Statistics:
        """Give a picture of this moment; without ``now``, of the last event's."""
        return picture(self, self.now if now is None else now)

    def validate(self) -> None:
        """Check every invariant against a recount from scratch; for tests."""
        audit(self)

    def unfinished(self) -> list[Record]:
        """List the records that were taken in and are not finished, by offset."""
        records = [record for queue in self.queues.values() for record in queue.records()]
        records += [ticket.record for lead in self.running() for ticket in lead.members()]
        if self.answers is not None:
            records += [ticket.record for ticket in self.answers.followers()]
        records += self.emission.unfinished()
        return sorted(records, key=attrgetter("offset"))

    def tracked_keys(self) -> int:
        """Count the keys with a record on its way, where the order contract knows keys."""
        if self.options.order == "key":
            return len(self.queues)
        return len(self.emission.by_key or ())

    def running(self) -> list[Ticket]:
        """List the calls whose answer is awaited."""
        return [lead for lead, attempt in self.calls.items() if attempt != ABANDONED]

    @property
    def stuck(self) -> bool:
        """Whether nothing that is held can go on before an abandoned call is gone."""
        if len(self.calls) > len(self.abandoned) or self.emission.undelivered or len(self.timers):
            return False
        if not self.abandoned:
            return False
        held = len(self.emission.frontier) > 0
        if self.draining:
            return held
        return not self.pulling or (held and len(self.calls) >= self.limit.permits)

    def _on_arrived(self, event: Arrived) -> None:
        self.pulling = False
        if self.stopped:
            self.others.append(GiveBack(list(event.records)))
            return
        records = event.records
        self.emission.frontier.expect(records)
        self.ledger.records += len(records)
        self.ledger.bytes += sum([record.size for record in records])
        self.counters.taken += len(records)
        self._fold()
        now, queues, batched = self.now, self.queues, self.batch_size is not None
        easy, reorders = self.key_of.easy, self.emission.reorders
        for record in records:
            record.taken = now
            key = record.key
            if type(key) not in easy or record.lane or reorders:
                try:
                    if reorders:
                        self.emission.expect(record)
                    key = self.key_of(record)
                except (BadKey, BadLane) as error:
                    self._reject(record, error)
                    continue
            queue = queues.get(key)
            if queue is None:
                queues[key] = queue = KeyQueue(key, record)
                self.make_ready(queue)
                continue
            rest = queue.rest
            if rest:
                rest.append(record)
            else:
                queue.append(record)
            if batched:
                self._grown(queue)

    def _grown(self, queue: KeyQueue) -> None:
        """Take note that a batch of this key could be larger now."""
        if queue.stamp:
            self.ready_records += self.across
        elif queue.linger is not None and len(queue) >= self.size():
            self.stop_lingering(queue)

    def _reject(self, record: Record, error: BadKey | BadLane) -> None:
        """Give a record that has no place among the keys the error policy's answer."""
        error.node = self.options.name
        self.queues[record] = queue = KeyQueue(record, record)
        self.give_up(queue.pop(), error)
        self.release(queue)

    def _pull(self) -> None:
        if self.pulling or self.draining:
            return
        records, size = self.ledger.room(self.tracked_keys())
        if records > 0:
            self.pulling = True
            self.others.append(Pull(records, size))

    def _on_delivered(self, event: Delivered) -> None:
        self.emission.delivered(event.count)

    def _fold(self) -> None:
        """Keep the histograms small; without arrivals and ticks nothing is added to them."""
        self.latency.fold(_FOLD)
        self.residence.fold(_FOLD)
        if self.several_lanes:
            for histogram in self.by_lane:
                histogram.fold(_FOLD // 4)  # there are several

    def _on_tick(self, _: Tick) -> None:
        self._awake_at = float("inf")
        self._fold()
        for action, subject in self.timers.due(self.now):
            action(subject)

    def _announce(self) -> None:
        """Say what the driver is to wait for."""
        if self.draining and not self.drained and not len(self.emission.frontier):
            self.drained = True
            self.others.append(Drained())
        when = self.timers.next()
        if when is not None and when < self._awake_at:
            self._awake_at = when
            self.others.append(WakeAt(when))

    def _on_drain(self, _: Drain) -> None:
        self.draining = True
        for queue in list(self.queues.values()):
            if queue.linger is not None:
                self.stop_lingering(queue)

    def _on_cancel(self, _: Cancel) -> None:
        self.others.extend(Abandon(lead, lead.attempt) for lead in self.running())
        self.others.append(GiveBack(self.emission.frontier.records()))
        self.stopped = self.cancelled = True
