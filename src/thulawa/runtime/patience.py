"""How long a task holds records back for a partition that has none: Kafka's max.task.idle.ms."""

__all__ = ["Patience"]


class Patience:
    """Counts from when a task first had records of some partitions and none of others.

    ``since`` is that time, None while there are records of all.
    """

    __slots__ = ("_limit", "since")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.since: int | None = None

    def holds(self, now: int, *, missing: bool) -> bool:
        """Tell whether records have to wait; ``missing``: some partition has none."""
        if not missing:
            self.since = None
            return False
        if self.since is None:
            self.since = now
        return now < self.since + self._limit

    @property
    def due(self) -> int | None:
        """When records will no longer wait; None: they do not."""
        return None if self.since is None else self.since + self._limit
