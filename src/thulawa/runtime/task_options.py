"""The options of tasks."""

from dataclasses import dataclass, field
from typing import Literal

from thulawa.core.durations import Duration, milliseconds
from thulawa.errors import ConfigurationError
from thulawa.runtime.handlers import Handlers


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """Configure error handling, timestamps, commits and waiting of tasks.

    ``on_bad_timestamp`` applies to negative timestamps and to those more than ``max_ahead`` beyond
    the wall clock: fail, skip, or use the partition time, the highest timestamp seen in the
    partition. ``max_record_bytes`` limits the serialized size of an output. ``commit`` is when
    caches are flushed: after every record, or after each batch. If ``max_ahead`` and ``commit`` are
    None, `Streams` uses one day and ``"batch"``, the test driver no limit and ``"record"``.

    A task with several partitions processes the earliest buffered record. With ``max_task_idle=0``
    (Kafka's default) it does not while another partition has records at the broker that no batch
    has read. With a longer ``max_task_idle`` it also waits that long for a partition that is read
    to its end. With None it never waits, and records of different batches may be processed out
    of timestamp order.
    """

    handlers: Handlers = field(default_factory=Handlers)
    on_bad_timestamp: Literal["fail", "skip", "partition_time"] = "fail"
    max_ahead: Duration | None = None
    max_record_bytes: int | None = None
    commit: Literal["record", "batch"] | None = None
    max_task_idle: Duration | None = 0

    def __post_init__(self) -> None:
        if self.on_bad_timestamp not in ("fail", "skip", "partition_time"):
            raise ConfigurationError(
                f"on_bad_timestamp={self.on_bad_timestamp!r} is not supported; "
                "use 'fail', 'skip' or 'partition_time'"
            )
        if self.commit not in (None, "record", "batch"):
            raise ConfigurationError(
                f"commit={self.commit!r} is not supported; use 'record' or 'batch'"
            )
        if self.max_ahead is not None:
            milliseconds(self.max_ahead, name="max_ahead")
        if self.max_task_idle is not None:
            milliseconds(self.max_task_idle, name="max_task_idle")

    @property
    def may_idle(self) -> bool:
        """Whether a task may wait for records that are not at the broker yet."""
        return self.max_task_idle is not None and milliseconds(self.max_task_idle) > 0

    @property
    def may_drop(self) -> bool:
        """Whether a record can be dropped for another reason than an operator's rules."""
        return self.handlers != Handlers() or self.on_bad_timestamp == "skip"
