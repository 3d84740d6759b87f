"""Caches for answers: what to keep, for how long, and how much of it."""

from collections.abc import Callable, Hashable, MutableMapping
from dataclasses import dataclass
from typing import Any

from thulawa.core.errors import ConfigurationError
from thulawa.engine import Record

__all__ = ["Cache"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """Keep answers for ``seconds``, at most ``size`` of them per worker.

    ``by`` gives what is asked, hashable, of what the function is called with: records that ask
    the same share one call while it is under way, and its answer afterwards.
    """

    by: Callable[[Any], Hashable]
    seconds: float = 300.0
    size: int = 100_000

    def __post_init__(self) -> None:
        if self.seconds <= 0 or self.size < 1:
            raise ConfigurationError("Cache.seconds must be positive and Cache.size at least 1")

    def __call__(self) -> MutableMapping[Hashable, Any]:
        """Make an empty cache."""
        from cachetools import TTLCache  # noqa: PLC0415 only where a cache is asked for

        return TTLCache(self.size, self.seconds)

    def question(self, record: Record) -> Hashable:
        """Return what a record asks."""
        return self.by(record.value)
