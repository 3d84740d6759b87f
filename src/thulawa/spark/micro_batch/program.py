"""What workers need to know of an application."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from thulawa.runtime.planning import SOURCE_STAGE, Plan, StagedSubTopology
from thulawa.runtime.recovery_plan import RecoveryPlan
from thulawa.runtime.task_options import TaskOptions
from thulawa.spark.micro_batch.output_limits import Outlets
from thulawa.spark.micro_batch.wire import slots

__all__ = ["Program", "offsets_topic"]


def offsets_topic(application_id: str) -> str:
    """Return the name of the topic that says how far an application's batches have read."""
    return f"{application_id}-offsets"


@dataclass(frozen=True)
class Program:
    """What workers need to know of an application. ``run`` is fresh for every start."""

    application_id: str
    run: str
    plan: Plan
    options: TaskOptions = field(default_factory=TaskOptions)
    clock: Callable[[int], int] | None = None
    prefixes: Mapping[int, str] = field(default_factory=dict)  # of state, by sub-topology
    outlets: Outlets | None = None  # what topics take; None: everything
    outputs: Mapping[str, int] = field(default_factory=dict)  # partitions of the topics written
    width: int | None = None  # how many slots tasks are spread over, where state says it
    changelogs: Mapping[str, str] = field(default_factory=dict)  # store -> topic
    had_timers: bool = False  # then it still has them: Spark does not take them from a query
    recovery: RecoveryPlan | None = None  # set while stores are rebuilt: nothing is processed then

    @cached_property
    def slots(self) -> list[int]:
        """The numbers that spread the tasks over Spark's partitions."""
        return slots(self.width or self.plan.tasks)

    def slot_of(self, task: int) -> int:
        """Give the number that leads to a task; one beyond those there were shares a slot."""
        return self.slots[task % len(self.slots)]

    @property
    def has_timers(self) -> bool:
        """Whether tasks may have to be called by the clock."""
        waits = self.options.may_idle
        return self.plan.has_timers or waits or self.had_timers

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that the program reads, under the names they have outside."""
        names = map(self._outside, self.plan.topics)
        return (*names, self.clock_topic) if self.has_timers else tuple(names)

    @property
    def inner_topics(self) -> tuple[str, ...]:
        """The topics of repartitions that are no shuffles, under the names they have outside."""
        repartitions = self.plan.repartitions
        return tuple(self._outside(name) for name, one in repartitions.items() if one.is_topic)

    @property
    def together(self) -> list[dict[str, tuple[int, ...]]]:
        """The partitions of topics that a task takes in order with others, by task.

        Only where it waits for them. What comes by a shuffle is no topic, and comes whole.
        """
        return [
            {self._outside(name): task[name] for name in self.plan.topics if name in task}
            for part in self._waiting_parts()
            for task in part.tasks
            if sum(map(len, task.values())) > 1
        ]

    @property
    def paced(self) -> list[dict[str, tuple[int, ...]]]:
        """The partitions of topics that are to be read about as far as each other in time.

        Where a task has part of its records by a shuffle, these are all that may lead to it.
        """
        found = self.together
        for part in self._waiting_parts():
            fed = self.plan.fed_by(part)
            if any(topic not in task for task in part.tasks for topic in fed):
                widths = {topic: self._width(topic) for topic in fed}
                found.append({self._outside(t): tuple(range(n)) for t, n in widths.items()})
        return found

    def _waiting_parts(self) -> list[StagedSubTopology]:
        if self.options.max_task_idle is None or self.recovery is not None:
            return []
        return [
            part
            for part in self.plan.parts.values()
            if part.stage != SOURCE_STAGE
            and any(sum(map(len, one.values())) > 1 for one in part.tasks)
        ]

    def _width(self, topic: str) -> int:
        part = self.plan.parts[self.plan.readers[topic]]
        return 1 + max(n for task in part.tasks for n in task.get(topic, (-1,)))

    def _outside(self, name: str) -> str:
        return f"{self.application_id}-{name}" if name in self.plan.repartitions else name

    @property
    def clock_topic(self) -> str:
        """The topic that wakes tasks with timers when the application starts."""
        return f"{self.application_id}-clock"

    @property
    def offsets_topic(self) -> str:
        """The topic that says, with the changelogs, how far their batches have read."""
        return offsets_topic(self.application_id)

    @cached_property
    def restored(self) -> Mapping[str, tuple[int, str]]:
        """The sub-topology and the store of each changelog that is being read back."""
        if self.recovery is None:
            return {}
        return {
            self.changelogs[store]: (part.group.id, store)
            for part in self.plan.parts.values()
            for store in part.group.stores
            if store in self.changelogs
        }

    def now(self, batch_time: int) -> int:
        """Give the wall-clock time of a batch: the same when it is run again."""
        return batch_time if self.clock is None else self.clock(batch_time)

    def timer(self, due: int, batch_time: int) -> int:
        """Give the time at which Spark is to call a task that waits for ``due``.

        Later than this batch, for Spark drops one that is set again while it fires. A clock of
        the program's own may jump, so it is looked at with every batch.
        """
        return batch_time + 1 if self.clock is not None else max(due, batch_time + 1)
