"""What can be chosen about how tasks run."""

from dataclasses import dataclass, field
from typing import Literal

from thulawa.core.durations import Duration, milliseconds
from thulawa.core.errors import ConfigurationError
from thulawa.runtime.handlers import Handlers

__all__ = ["TaskOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """How records that do not fit are treated.

    ``on_bad_timestamp`` is about negative times and such that are further than ``max_ahead``
    beyond the wall clock: fail, skip, or use the partition's time, which is the highest one seen
    there. ``max_record_bytes`` bounds an output's serialized size. ``commit`` says how often what
    caches hold back is sent on: after every record, or when all records there are have been
    processed. Where these two are not said (None), `Streams` has one day and ``"batch"``, and the
    test driver no bound and ``"record"``.

    A task that reads several partitions takes the earliest record of those it has. It does not
    take one while another of its partitions has records at the broker that no batch has read yet
    (``max_task_idle=0``, Kafka's default). With a longer ``max_task_idle`` it waits that long for a
    partition that is read to its end too. None: it waits for nothing, and records that come in
    different batches may meet in another order than that of their time.
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
                f"on_bad_timestamp={self.on_bad_timestamp!r} is not known; "
                "use 'fail', 'skip' or 'partition_time'"
            )
        if self.commit not in (None, "record", "batch"):
            raise ConfigurationError(
                f"commit={self.commit!r} is not known; use 'record' or 'batch'"
            )
        if self.max_ahead is not None:
            milliseconds(self.max_ahead, name="max_ahead")
        if self.max_task_idle is not None:
            milliseconds(self.max_task_idle, name="max_task_idle")

    @property
    def waits_by_the_clock(self) -> bool:
        """Whether a task may wait for records that are not at the broker yet."""
        return self.max_task_idle is not None and milliseconds(self.max_task_idle) > 0

    @property
    def may_drop(self) -> bool:
        """Whether a record can be left out for another reason than the rules of an operator."""
        return self.handlers != Handlers() or self.on_bad_timestamp == "skip"
