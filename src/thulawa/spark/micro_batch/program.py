"""An application as its workers need it: the plan and everything it depends on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from thulawa.runtime.planning import SOURCE_STAGE, Plan, StagedSubTopology
from thulawa.runtime.recovery_plan import RecoveryPlan
from thulawa.runtime.task_options import TaskOptions
from thulawa.spark.micro_batch.output_limits import OutputLimits
from thulawa.spark.micro_batch.wire import Packed, slots


def offsets_topic(application_id: str) -> str:
    """Return the name of the topic with the read positions of an application."""
    return f"{application_id}-offsets"


@dataclass(frozen=True)
class Program:
    """An application as sent to its workers. ``run`` is unique for every start."""

    application_id: str
    run: str
    plan: Plan
    options: TaskOptions = field(default_factory=TaskOptions)
    clock: Callable[[int], int] | None = None
    prefixes: Mapping[int, str] = field(default_factory=dict)  # of state entries, by sub-topology
    limits: OutputLimits | None = None  # size limits of output topics; None: no limits
    outputs: Mapping[str, int] = field(default_factory=dict)  # output topic -> partitions
    width: int | None = None  # number of slots; state fixes it
    changelogs: Mapping[str, str] = field(default_factory=dict)  # store -> topic
    had_timers: bool = False  # an earlier version had: a query keeps its time mode
    recovery: RecoveryPlan | None = None  # set while stores are restored, and nothing is processed

    @cached_property
    def slots(self) -> list[int]:
        """The shuffle keys that distribute tasks over Spark's partitions."""
        return slots(self.width or self.plan.tasks)

    def slot_of(self, task: int) -> int:
        """Return the slot of a task; tasks beyond the number of slots share one."""
        return self.slots[task % len(self.slots)]

    def row(self, stage: int, task: int, topic: str, part: int, place: str, data: bytes) -> Packed:
        """Return a row for a task of a stage, or of the sink."""
        return Packed(self.slot_of(task), stage, task, topic, part, place, data)

    @property
    def has_timers(self) -> bool:
        """Whether tasks may need timers."""
        return self.plan.has_timers or self.options.may_idle or self.had_timers

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that the program reads, by their names on the broker."""
        names = map(self.broker_name, self.plan.topics)
        return (*names, self.clock_topic) if self.has_timers else tuple(names)

    @property
    def internal_topics(self) -> tuple[str, ...]:
        """The repartition topics, by their names on the broker."""
        repartitions = self.plan.repartitions
        return tuple(self.broker_name(name) for name, one in repartitions.items() if one.is_topic)

    @property
    def ordered_groups(self) -> list[dict[str, tuple[int, ...]]]:
        """The topic-partitions that a task merges by timestamp, for each task that waits for them.

        Records that arrive by a shuffle are not included: a micro-batch has all of them.
        """
        return [
            {self.broker_name(name): task[name] for name in self.plan.topics if name in task}
            for part in self._waiting_parts()
            for task in part.tasks
            if sum(map(len, task.values())) > 1
        ]

    @property
    def paced_groups(self) -> list[dict[str, tuple[int, ...]]]:
        """The topic-partitions that are read at about the same pace in event time, by group.

        For a task that gets records by a shuffle, these are all partitions that feed it.
        """
        found = self.ordered_groups
        for part in self._waiting_parts():
            fed = self.plan.fed_by(part)
            if any(topic not in task for task in part.tasks for topic in fed):
                found.append({self.broker_name(t): tuple(range(self._width(t))) for t in fed})
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

    def broker_name(self, name: str) -> str:
        """Return the name on the broker of a topic of the plan."""
        return f"{self.application_id}-{name}" if name in self.plan.repartitions else name

    @property
    def clock_topic(self) -> str:
        """The topic whose record wakes tasks with timers when the application starts."""
        return f"{self.application_id}-clock"

    @property
    def offsets_topic(self) -> str:
        """The topic with the read positions that belong to the changelogs."""
        return offsets_topic(self.application_id)

    @cached_property
    def restored(self) -> Mapping[str, tuple[int, str]]:
        """The sub-topology and the store of each changelog that is being restored."""
        if self.recovery is None:
            return {}
        return {
            self.changelogs[store]: (part.group.id, store)
            for part in self.plan.parts.values()
            for store in part.group.stores
            if store in self.changelogs
        }

    def now(self, batch_time: int) -> int:
        """Return the wall-clock time of a micro-batch, which is the same in a rerun."""
        return batch_time if self.clock is None else self.clock(batch_time)

    def timer(self, due: int, batch_time: int) -> int:
        """Return the time of the Spark timer for a task that waits for ``due``.

        It is later than this micro-batch, because Spark drops a timer that is set again while it
        fires. A custom clock may jump, so it is checked in every micro-batch.
        """
        return batch_time + 1 if self.clock is not None else max(due, batch_time + 1)
