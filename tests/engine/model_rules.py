"""The twelve rules as checks of a run, each written from the promise and not from the code.

`Facts` says what a step has changed; each rule looks at that and objects. Order is judged by
the library's own `OrderOracle`.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from typing import Any

from tests.engine.model_admission import BatchRule, BoundsRule, FairRule, GateRule, RetryRule
from tests.engine.model_driver import Drive, Step
from tests.engine.model_facts import EPSILON, Facts, Rule, can_be_a_key, results_of
from thulawa.engine.events import Cancel, Event
from thulawa.engine.options import Quarantine, SingleFlight
from thulawa.engine.work_items import Outcome, WorkItem
from thulawa.errors import (
    AttemptTimedOut,
    BadKey,
    BadLane,
    DeadlineExceeded,
    Overload,
    Quarantined,
    WrongResult,
)
from thulawa.testing import OrderOracle


class OrderRule(Rule):
    """Order contracts and emission order, by the oracle."""

    def __init__(self, of: Drive, facts: Facts) -> None:
        super().__init__(of, facts)
        options = of.options
        self.oracle = OrderOracle(
            order=options.order,
            emit=options.emit,
            unkeyed=options.unkeyed,
            clock=lambda: of.now,
        )
        self.known: set[int] = set()
        self.left: set[int] = set()
        self.last_emitted = -1

    def after(self, step: Step) -> None:
        self._tell_what_ended(step)
        for call in step.started:
            self.oracle.started(*call.offsets)
        for offset in self._known(record.offset for record in step.returned):
            if offset not in self.left:
                self.oracle.returned_unprocessed(offset)
        if self.options.emit == "partition":
            for outcome in step.emitted:
                assert outcome.record.offset > self.last_emitted, "not in partition order"
                self.last_emitted = outcome.record.offset

    def _tell_what_ended(self, step: Step) -> None:
        oracle, facts = self.oracle, self.facts
        for record in step.arrived:
            if record.offset in facts.arrived and record.offset not in facts.rejected:
                hashable = can_be_a_key(record.key)
                oracle.arrived(record.offset, record.key if hashable else str(record.offset))
                self.known.add(record.offset)
        for end in step.ended:
            for offset in end.call.offsets:
                (oracle.finished if offset in facts.now_final else oracle.failed)(offset)
        for offset in self._known(sorted(facts.now_final - facts.by_call)):
            oracle.started(offset)  # completed without a call, in order nevertheless
            oracle.finished(offset)
        for offset in self._known(facts.dropped):
            oracle.dropped(offset)
        for offset in self._known(outcome.record.offset for outcome in step.emitted):
            oracle.emitted(offset)
            self.left.add(offset)

    def _known(self, offsets: Iterable[int]) -> list[int]:
        return [offset for offset in offsets if offset in self.known]


class AbandonedRule(Rule):
    """No call begins while an abandoned one of its keys runs on."""

    def after(self, step: Step) -> None:
        taken = {ticket.queue.key for call in self.of.abandoned.values() for ticket in call.tickets}
        for call in step.started:
            assert not taken.intersection(ticket.queue.key for ticket in call.tickets), "overlap"


class ResultRule(Rule):
    """Every outcome is the result of its last call, or has a reason to exist without a call."""

    def __init__(self, of: Drive, facts: Facts) -> None:
        super().__init__(of, facts)
        self.verdicts: dict[int, Any] = {}
        self.starts: Counter[int] = Counter()
        self.first_start: dict[int, float] = {}
        self.emitted: set[int] = set()
        self.results: dict[Hashable, list[Any]] = defaultdict(list)

    def after(self, step: Step) -> None:
        for end in step.ended:
            for ticket, result in zip(end.call.tickets, results_of(end), strict=True):
                offset = ticket.record.offset
                if offset in self.facts.by_call:
                    self.verdicts[offset] = result
                    self._learn(ticket.record, result)
        for outcome in step.emitted:
            self._check(outcome, step.now)
        for offset in self.facts.dropped:
            assert isinstance(self.verdicts.get(offset, Exception()), Exception), "dropped a result"
        for call in step.started:
            self.starts.update(call.offsets)
            for offset in call.offsets:
                self.first_start.setdefault(offset, step.now)

    def _learn(self, record: WorkItem, result: Any) -> None:
        if self.options.single_flight is not None:
            self.results[self.options.single_flight.by(record)].append(result)

    def _check(self, outcome: Outcome, now: float) -> None:
        offset = outcome.record.offset
        assert outcome.record is self.facts.arrived[offset]
        assert offset not in self.emitted, "emitted twice"
        self.emitted.add(offset)
        assert outcome.attempts == self.starts[offset]
        keeps = self.options.on_error in ("dead_letter", "column")
        assert outcome.ok or keeps, "the policy emits no errors"
        if offset in self.verdicts:
            verdict = self.verdicts[offset]
            if not isinstance(verdict, Exception):
                assert outcome.ok
                assert outcome.result == verdict
            elif isinstance(verdict, AttemptTimedOut | Overload):
                assert isinstance(outcome.error, AttemptTimedOut | DeadlineExceeded)
            elif isinstance(verdict, WrongResult):
                assert isinstance(outcome.error, WrongResult)
            else:
                assert outcome.error is verdict
        else:
            assert self._is_accounted_for(outcome, now), f"{outcome} has no reason"

    def _is_accounted_for(self, outcome: Outcome, now: float) -> bool:
        record, options = outcome.record, self.options
        if record.offset in self.facts.rejected:
            return isinstance(outcome.error, BadKey | BadLane)
        if isinstance(outcome.error, Quarantined):
            return options.quarantine is not None
        if isinstance(outcome.error, DeadlineExceeded) and options.single_flight is None:
            return now >= self.first_start[record.offset] + (options.deadline or 1e9) - EPSILON
        return options.single_flight is not None and self._is_shared(outcome, options.single_flight)

    def _is_shared(self, outcome: Outcome, flight: SingleFlight) -> bool:
        try:
            results = self.results[flight.by(outcome.record)]
        except ZeroDivisionError:
            return isinstance(outcome.error, ZeroDivisionError)
        if isinstance(outcome.error, DeadlineExceeded):  # its own, or that of its leader
            return self.options.deadline is not None
        if outcome.ok:
            return outcome.result in results
        return any(isinstance(each, Exception) for each in results)


class SingleFlightRule(Rule):
    """No request is in flight twice, and none is made that is cached."""

    def __init__(self, of: Drive, facts: Facts, *, cached: bool) -> None:
        super().__init__(of, facts)
        self.cached = cached
        self.known: set[Hashable] = set()

    def after(self, step: Step) -> None:
        if self.options.single_flight is None:
            return
        by = self.options.single_flight.by
        asked = [by(t.record) for call in self.of.running.values() for t in call.tickets]
        assert len(asked) == len(set(asked)), "a request is in flight twice"
        for end in step.ended if self.cached else ():
            for ticket, result in zip(end.call.tickets, results_of(end), strict=True):
                final = ticket.record.offset in self.facts.now_final
                if final and not isinstance(result, Exception):
                    self.known.add(by(ticket.record))
        started = [by(t.record) for call in step.started for t in call.tickets]
        assert not self.known.intersection(started), "a call though its result is cached"


class QuarantineRule(Rule):
    """A key in quarantine is not called, and no other key is in quarantine."""

    def __init__(self, of: Drive, facts: Facts) -> None:
        super().__init__(of, facts)
        self.at_least: Counter[Hashable] = Counter()
        self.at_most: Counter[Hashable] = Counter()
        self.failed_before: dict[int, int] = {}
        self.last: dict[Hashable, float] = {}

    def after(self, step: Step) -> None:
        if self.options.quarantine is not None:
            self._learn(step)
            self._check(step, self.options.quarantine)

    def _learn(self, step: Step) -> None:
        for end in step.ended:
            for ticket, result in zip(end.call.tickets, results_of(end), strict=True):
                record = ticket.record
                if record.offset in self.facts.by_call:
                    self._count(record.key, step.now, failed=isinstance(result, Exception))
        on_the_way = self.facts.now_final - self.facts.by_call - self.facts.rejected
        keys = {offset: self.facts.arrived[offset].key for offset in on_the_way}
        for key in keys.values():
            self.at_least[key] = 0  # it may have been a success, through the cache
            self.at_most[key] += 1
        for offset, key in keys.items():
            self.failed_before[offset] = self.at_most[key] - 1

    def _check(self, step: Step, quarantine: Quarantine) -> None:
        for outcome in step.emitted:
            if isinstance(outcome.error, Quarantined):
                assert outcome.record.key is not None
                assert self.failed_before[outcome.record.offset] >= quarantine.after, "no reason"
        for call in step.started if len(self.at_most) <= quarantine.keys else ():
            for ticket in call.tickets:
                key = ticket.record.key
                often = key is not None and self.at_least[key] >= quarantine.after
                blocked = often and step.now < self.last[key] + quarantine.seconds - EPSILON
                assert not blocked, "called in quarantine"

    def _count(self, key: Hashable, now: float, *, failed: bool) -> None:
        if failed:
            self.at_least[key] += 1
            self.at_most[key] += 1
            if key is not None:
                self.last[key] = now
        else:
            self.at_least[key] = self.at_most[key] = 0


class EndRule(Rule):
    """Drained means finished; what is returned is what is unfinished; a next event always comes."""

    def before(self, event: Event) -> None:
        self.was_cancelled = self.of.scheduler.state.cancelled

    def after(self, step: Step) -> None:
        of = self.of
        if self.was_cancelled:
            assert step.returned == step.arrived
            assert [step.started, step.ended, step.emitted] == [[], [], []]
        elif isinstance(step.event, Cancel):
            given = sorted(record.offset for record in step.returned)
            assert given == sorted(self.facts.unfinished), "not what is unfinished"
            assert not of.running, "still running"
        elif step.returned:
            assert step.returned == step.arrived
            assert of.scheduler.state.stopped
        if of.drained:
            assert not self.facts.unfinished
            assert of.scheduler.state.draining
        elif of.aborted is None and not of.cancelled:
            assert of.has_next_event(), "no event will ever come"


class StatisticsRule(Rule):
    """Every record that arrived is in exactly one place, and statistics count it there."""

    dropped = 0

    def after(self, _: Step) -> None:
        of, facts = self.of, self.facts
        self.dropped += len(facts.dropped)
        if of.cancelled or of.aborted is not None:
            return
        seen = of.scheduler.statistics()
        calls = (seen.in_flight, seen.in_flight_records, seen.abandoned)
        there = len(of.running) + len(of.abandoned), len(of.in_flight), len(of.abandoned)
        assert calls == there, "calls are miscounted"
        assert seen.undelivered == len(of.outbox)
        places = seen.waiting + seen.in_flight_records + seen.following + seen.parked
        places += seen.reordering + seen.undelivered
        assert places == len(facts.unfinished), "a record is in no place, or in two"
        assert seen.arrived == len(facts.arrived)
        assert seen.succeeded + seen.failed == seen.arrived - len(facts.pending)
        assert seen.dropped == self.dropped


def watch(of: Drive, *, cached: bool) -> OrderOracle:
    """Check a run by all rules; return the oracle, for its check at the end."""
    facts = Facts(of)
    order = OrderRule(of, facts)
    rules = (AbandonedRule, ResultRule, GateRule, FairRule, BoundsRule, BatchRule)
    of.rules += [facts, RetryRule(of, facts), order, *(rule(of, facts) for rule in rules)]
    of.rules += [SingleFlightRule(of, facts, cached=cached), QuarantineRule(of, facts)]
    of.rules.append(StatisticsRule(of, facts))
    of.rules.append(EndRule(of, facts))
    return order.oracle
