"""The option object for caches of call results."""

from collections.abc import Callable, Hashable, MutableMapping
from dataclasses import dataclass
from typing import Any

from thulawa.engine import WorkItem
from thulawa.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """Cache results for ``seconds``, at most ``size`` of them per worker.

    ``by`` returns the hashable cache key of the function's argument. Records with the same cache
    key share one call while it is in flight, and its result afterwards.
    """

    by: Callable[[Any], Hashable]
    seconds: float = 300.0
    size: int = 100_000

    def __post_init__(self) -> None:
        if self.seconds <= 0 or self.size < 1:
            raise ConfigurationError("Cache.seconds must be positive and Cache.size at least 1")

    def __call__(self) -> MutableMapping[Hashable, Any]:
        """Create an empty cache."""
        from cachetools import TTLCache  # noqa: PLC0415 only where a cache is used

        return TTLCache(self.size, self.seconds)

    def cache_key(self, record: WorkItem) -> Hashable:
        """Return the cache key of a record."""
        return self.by(record.value)
