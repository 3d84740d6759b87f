"""A topology with everything that its hosts need to run it, as it is shipped to them."""

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from uuid import uuid4

from thulawa.brokers.port import Broker
from thulawa.runtime.planning import Plan
from thulawa.runtime.task_options import TaskOptions
from thulawa.topology.nodes import Sink


@dataclass(frozen=True, slots=True)
class TaskId:
    """A task: one partition group of a sub-topology."""

    group: int
    number: int

    def __str__(self) -> str:
        return f"{self.group}_{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuousProgram:
    """A planned topology and how to run it; all its repartitions are topics.

    ``hosts`` are the tasks of each Spark task. ``run`` identifies one start. ``outputs`` are the
    partition counts of the topics that have a partitioner. ``state_dir`` is the folder of local
    state, by default one for temporary files; ``state_memory`` are the bytes of it in memory.
    """

    application_id: str
    broker: Broker
    plan: Plan
    options: TaskOptions
    hosts: tuple[tuple[TaskId, ...], ...]
    outputs: Mapping[str, int]
    run: str = field(default_factory=lambda: uuid4().hex)
    exactly_once: bool = True
    commit_interval: float = 0.1
    transaction_timeout: float = 60.0
    state_dir: str | None = None
    state_memory: int = 256_000_000

    @property
    def progress_topic(self) -> str:
        """The compacted topic with the progress of tasks, and in partition 0 the last run.

        Each task has a partition of its own: an open transaction of another host would hide it.
        """
        return f"{self.application_id}-progress"

    @property
    def tasks(self) -> list[TaskId]:
        """All tasks, in order."""
        return sorted((task for host in self.hosts for task in host), key=astuple)

    def progress_partition(self, task: TaskId) -> int:
        """Return the partition of a task in the progress topic."""
        return 1 + self.tasks.index(task)

    def transactional_id(self, host: int) -> str | None:
        """Return the transactional id of a host; None without transactions."""
        return f"{self.application_id}-host-{host}" if self.exactly_once else None

    def topic_name(self, topic: str) -> str:
        """Return the name of a topic at the broker: repartitions have the application's prefix."""
        return f"{self.application_id}-{topic}" if topic in self.plan.repartitions else topic

    def changelog(self, store: str) -> str:
        """Return the changelog topic of a store, as Kafka Streams names it."""
        return f"{self.application_id}-{store}-changelog"

    def changelogs(self) -> dict[str, int]:
        """Return the changelog topics and their partition counts."""
        return {
            self.changelog(store): len(part.tasks)
            for part in self.plan.parts.values()
            for store in part.group.stores
        }

    def internal_topics(self) -> dict[str, int]:
        """Return the repartition topics and their partition counts."""
        return {
            self.topic_name(name): one.partitions for name, one in self.plan.repartitions.items()
        }


def partitioned_outputs(plan: Plan) -> set[str]:
    """Return the output topics of sinks with a partitioner, which needs their partition counts."""
    return {
        node.topic
        for node in plan.topology.nodes.values()
        if isinstance(node, Sink)
        and node.partitioner is not None
        and not node.internal
        and isinstance(node.topic, str)
    }


def assign_hosts(plan: Plan, hosts: int) -> tuple[tuple[TaskId, ...], ...]:
    """Distribute the tasks of a plan round-robin over hosts; tasks of equal number are spread.

    Sub-topologies that feed each other then have their tasks on different hosts where possible.
    """
    tasks = [
        TaskId(part.group.id, number)
        for part in plan.parts.values()
        for number in range(len(part.tasks))
    ]
    return tuple(tuple(tasks[host::hosts]) for host in range(min(hosts, len(tasks))))
