"""When a task holds records back for a partition that has none: Kafka's max.task.idle.ms.

A record must not be taken while another partition of the task has records at the broker that no
batch has brought yet: one of them may be earlier. Such a partition is *behind*, and is waited for
without a limit, since the next batches bring its records. A partition that is read to its end is
waited for only as long as ``max_task_idle`` says.
"""

from thulawa.core.durations import Duration, milliseconds

__all__ = ["TaskIdleTimer"]


class TaskIdleTimer:
    """Whether the records of a task have to wait.

    ``limit`` is the time for partitions that are read to their end; None: nothing waits.
    ``since`` is when the task first had records of some partitions and none of such others; None
    while there are records of all. ``behind`` are the partitions with more records at the broker.
    """

    __slots__ = ("_limit", "active", "behind", "since")

    def __init__(self, limit: Duration | None) -> None:
        self._limit = None if limit is None else milliseconds(limit)
        self.since: int | None = None
        self.behind: set[tuple[str, int]] = set()
        self.active = bool(self._limit)  # whether records may have to wait at this moment

    def set_behind(self, place: tuple[str, int], *, behind: bool) -> None:
        """Note whether a partition has more records at the broker."""
        if self._limit is not None:
            (self.behind.add if behind else self.behind.discard)(place)
            self.active = bool(self._limit or self.behind)

    def holds(self, now: int, empty: list[tuple[str, int]]) -> bool:
        """Return whether records have to wait, where the partitions ``empty`` have none."""
        if not self.behind.isdisjoint(empty):
            return True
        if not self._limit or not empty:
            self.since = None
            return False
        if self.since is None:
            self.since = now
        return now < self.since + self._limit

    @property
    def due(self) -> int | None:
        """When records will no longer wait; None: that is not by the clock."""
        return None if self.since is None or not self._limit else self.since + self._limit
