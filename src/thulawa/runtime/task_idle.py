"""How long a task waits for a partition without buffered records: Kafka's max.task.idle.ms.

A record must not be processed while another partition of the task has records at the broker that
no batch has read yet: one of them may be earlier. Such a partition is *behind*, and the task waits
for it without a limit, since the next batches read its records. For a partition that is read to its
end the task waits at most ``max_task_idle``.
"""

from thulawa.core.durations import Duration, milliseconds


class TaskIdleTimer:
    """Decide whether a task waits for empty partitions.

    ``limit`` bounds the wait for partitions that are read to their end; None: never wait.
    ``since`` is when such a wait began, None if all partitions have records. ``behind`` are the
    partitions with unread records at the broker.
    """

    __slots__ = ("_limit", "active", "behind", "since")

    def __init__(self, limit: Duration | None) -> None:
        self._limit = None if limit is None else milliseconds(limit)
        self.since: int | None = None
        self.behind: set[tuple[str, int]] = set()
        self.active = bool(self._limit)  # whether the task may have to wait at all

    def set_behind(self, partition: tuple[str, int], *, behind: bool) -> None:
        """Set whether a topic-partition has unread records at the broker."""
        if self._limit is not None:
            (self.behind.add if behind else self.behind.discard)(partition)
            self.active = bool(self._limit or self.behind)

    def must_wait(self, now: int, empty: list[tuple[str, int]]) -> bool:
        """Return whether the task must wait, if the partitions ``empty`` have no records."""
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
        """The time at which a wait ends; None if there is none, or if the clock does not end it."""
        return None if self.since is None or not self._limit else self.since + self._limit
