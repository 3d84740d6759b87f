"""The facts of a step of a random run, and the base class of rules over them."""

from typing import Any

from tests.engine.model_driver import Drive, End, Step
from thulawa.engine.events import Event
from thulawa.engine.work_items import WorkItem
from thulawa.errors import (
    AttemptTimedOut,
    WrongResult,
)

EPSILON = 1e-6  # rounding


def can_be_a_key(key: Any) -> bool:
    parts = key if isinstance(key, tuple) else (key,)
    return not isinstance(key, list) and all(part == part for part in parts)  # noqa: PLR0124


def results_of(end: End) -> list[Any]:
    """Return the result or error of each record of a call."""
    count = len(end.call.tickets)
    if end.error is not None:
        return [end.error] * count
    if end.abandoned:
        return [AttemptTimedOut("")] * count
    if not isinstance(end.results, list) or len(end.results) != count:
        return [WrongResult("")] * count
    return end.results


class Facts:
    """The state after a step, and what the step changed; updated before all rules."""

    def __init__(self, of: Drive) -> None:
        self.of = of
        self.arrived: dict[int, WorkItem] = {}
        self.rejected: set[int] = set()
        self.unfinished: set[int] = set()
        self.pending: set[int] = set()
        self.now_final: set[int] = set()
        self.by_call: set[int] = set()
        self.dropped: list[int] = []
        self.was_aborted = False

    def before(self, event: Event) -> None:
        self.was_aborted = self.of.aborted is not None

    def after(self, step: Step) -> None:
        scheduler = self.of.scheduler
        if not self.was_aborted and not self.of.cancelled:
            self.arrived |= {record.offset: record for record in step.arrived}
            self.rejected |= {record.offset for record in step.arrived if self._rejects(record)}
            self.unfinished |= {record.offset for record in step.arrived}
            self.pending |= {record.offset for record in step.arrived}
        unfinished = {record.offset for record in scheduler.unfinished()}
        final = {record.offset for record in scheduler.state.emission.unfinished()}
        gone = self.unfinished - unfinished
        delivered = {outcome.record.offset for outcome in step.delivered}
        assert delivered <= gone, "delivered and still held"
        self.dropped = sorted(gone - delivered)
        assert not self.dropped or self.of.options.on_error == "drop", "lost"
        self.now_final = self.pending - (unfinished - final)
        self.by_call = {o for end in step.ended for o in end.call.offsets} & self.now_final
        self.pending -= self.now_final
        self.unfinished = unfinished
        assert self.pending == unfinished - final
        expected = min(unfinished, default=max(self.arrived, default=-1) + 1)
        assert scheduler.state.emission.frontier.frontier == expected

    def _rejects(self, record: WorkItem) -> bool:
        options = self.of.options
        ordered = options.order in ("key", "emit")
        no_lane = not 0 <= record.lane < len(options.lanes.lanes)
        return no_lane or (ordered and not can_be_a_key(record.key))


class Rule:
    """A rule over a run."""

    def __init__(self, of: Drive, facts: Facts) -> None:
        self.of = of
        self.options = of.options
        self.facts = facts

    def before(self, event: Event) -> None: ...

    def after(self, step: Step) -> None:
        raise NotImplementedError
