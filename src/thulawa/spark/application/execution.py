"""The options of `Streams`: where an application runs and how."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeAlias

from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.routing import Policies
from thulawa.brokers.kafka.transactions import Guarantee
from thulawa.core.durations import Duration, milliseconds
from thulawa.core.names import check_name
from thulawa.core.serdes import Serde
from thulawa.core.sizes import byte_size
from thulawa.errors import ConfigurationError
from thulawa.runtime.application_states import Restart, policy_of
from thulawa.runtime.batch_size import AdaptiveBatchSize
from thulawa.runtime.partition_groups import PartitionGrouper, by_number
from thulawa.runtime.task_options import TaskOptions

ErrorAction: TypeAlias = Literal["stop", "restart"]

_MICRO_BATCH = {
    "checkpoint",
    "max_records",
    "policies",
    "trigger",
    "weight",
    "on_error",
    "allow_state_loss",
    "changelogs",
    "settings",
}


@dataclass(frozen=True, kw_only=True)
class Execution:
    """The options of `Streams`, which takes them as keyword arguments.

    .. versionadded:: 0.1.0
    """

    application_id: str
    """Identifies the application: its state, offsets and internal topics have it in their names."""

    log: str | Connection
    """The broker: ``file:./topics``, ``kafka://host:9092``, or a `Connection` with passwords."""

    execution: Literal["micro_batch", "continuous"] = "micro_batch"
    """``continuous`` hosts the tasks in long-running Spark tasks: results are visible after
    milliseconds, and micro-batch options do not apply."""

    parallelism: int | None = None
    """Continuous: the number of Spark tasks; by default one per core, at most one per task."""

    commit_interval: Duration = "100 ms"
    """Continuous: the interval of commits, with which results become visible under exactly once."""

    state_dir: str | None = None
    """Continuous: the folder of local state on each machine, on a fast local disk; by default one
    in the system's folder for temporary files."""

    state_memory: int | str = "256 MB"
    """Continuous: the memory for state in each Spark task; what does not fit is on the disk."""

    checkpoint: str | None = None
    """The local folder of offsets and state, which belongs to this application alone.

    By default ``checkpoints/<application_id>`` in the folder of the log or, with Kafka, in the
    working folder.
    """

    spark: Any = None
    """The Spark session; by default `thulawa.session`."""

    options: TaskOptions | None = None
    """The options of tasks."""

    key_serde: Serde[Any] | None = None
    """The serde of keys where a topic names none; by default text."""

    value_serde: Serde[Any] | None = None
    """The serde of values where a topic names none; by default JSON."""

    grouper: PartitionGrouper = by_number
    """Which partitions form a task."""

    max_records: int | AdaptiveBatchSize | None = 100_000
    """The most records of a batch; None: all there are; adaptive: as many as take a given time."""

    processing_guarantee: Guarantee = "exactly_once"
    """``at_least_once`` saves the transactions on Kafka."""

    policies: Policies | None = None
    """On Kafka: what to do with oversized records and with records for missing topics."""

    transaction_timeout: Duration | None = None
    """On Kafka: the time within which a batch must end; by default 5 minutes."""

    trigger: Duration | None = None
    """The interval between batches; by default a batch starts when the previous one has ended."""

    weight: int = 1
    """The application's share of the cores among the applications of a session."""

    on_error: ErrorAction | Restart | Callable[[Exception], ErrorAction] = "stop"
    """What to do after an error that no handler took; a function decides by the error."""

    allow_state_loss: bool = False
    """Whether to start a changed program with empty stores where it would lose their state."""

    changelogs: bool = False
    """Whether every store has a changelog, from which a lost checkpoint is restored."""

    clock: Callable[[int], int] | None = None
    """Returns the wall-clock time of a batch from its time in milliseconds; for tests."""

    settings: Mapping[str, str] | None = field(default=None)
    """Spark settings of the query's session."""

    def __post_init__(self) -> None:
        check_name(self.application_id, "application")
        if isinstance(self.max_records, int) and self.max_records < 1:
            raise ConfigurationError("max_records must be at least 1, or None for all there are")
        if type(self.weight) is not int or self.weight < 1:
            raise ConfigurationError(f"weight must be a whole number from 1, not {self.weight!r}")
        if self.execution not in ("micro_batch", "continuous"):
            raise ConfigurationError(
                f"execution={self.execution!r} is not known; use 'micro_batch' or 'continuous'"
            )
        if self.parallelism is not None and self.parallelism < 1:
            raise ConfigurationError("parallelism must be at least 1")
        milliseconds(self.commit_interval, name="commit_interval")
        byte_size(self.state_memory, name="state_memory")
        policy_of(self.on_error)
        if self.trigger is not None:
            milliseconds(self.trigger, name="trigger")

    def check_continuous(self) -> None:
        """Raise `ConfigurationError` for options that continuous execution does not have."""
        timeout = milliseconds(self.transaction_timeout or "1 minute")
        if milliseconds(self.commit_interval) * 2 > timeout:
            raise ConfigurationError(
                f"commit_interval={self.commit_interval!r} must be at most half of "
                f"transaction_timeout, which is {timeout / 1_000:g} s"
            )
        for option in fields(self):
            if option.name in _MICRO_BATCH and getattr(self, option.name) != option.default:
                raise ConfigurationError(
                    f"{option.name} is an option of micro-batches; remove it, or "
                    'execution="continuous"'
                )

    @property
    def task_options(self) -> TaskOptions:
        """The options of tasks with the defaults of `Streams`."""
        chosen = self.options or TaskOptions()
        return replace(
            chosen,
            commit=chosen.commit or "batch",  # Spark commits batches, and caches flush with them
            max_ahead="1 day" if chosen.max_ahead is None else chosen.max_ahead,
        )
