"""Dead letters as they are found in a topic: what happened to a record, and where it came from.

The headers are those of Kafka Streams (KIP-1034), ``__streams.errors.*``, with ours beside them.
"""

from collections.abc import Collection
from dataclasses import dataclass

from thulawa.core.types import Headers

__all__ = ["ERRORS", "ROW", "Letter", "Refusal"]

ERRORS = "__streams.errors."
ROW = "thulawa.dead_letter"
"""A header of letters whose value is a row of `map_by_key`; it says which one."""

_OURS = "thulawa.errors."


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a letter cannot be sent back."""

    reason: str


@dataclass(frozen=True, slots=True)
class Letter:
    """A record of a dead-letter topic."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def place(self) -> str:
        """Where it stands, as one writes it: ``partition:offset``."""
        return f"{self.partition}:{self.offset}"

    def told(self, name: str) -> str:
        """Give one of the error's facts: exception, message, stacktrace, topic, …; or nothing."""
        facts = dict(self.headers)
        found = facts.get(ERRORS + name, facts.get(_OURS + name))
        return "" if found is None else found.decode(errors="replace")

    @property
    def origin(self) -> str:
        """Where the record came from: topic, partition and offset, as far as they are told."""
        parts = (self.told("topic"), self.told("partition"), self.told("offset"))
        return ":".join(part for part in parts if part)

    @property
    def original_headers(self) -> Headers:
        """The headers that the record came with."""
        return tuple(
            (name, value)
            for name, value in self.headers
            if name != ROW and not name.startswith((ERRORS, _OURS))
        )

    def _original_size(self) -> int:
        """Return how many bytes the value had before it was cut off; 0: it was not.

        A sink says so behind the exception. Before it stand the headers that the record came with,
        in which anybody may have written anything.
        """
        names = [name for name, _ in self.headers]
        told = ERRORS + "exception"
        start = len(names) - 1 - names[::-1].index(told) if told in names else 0
        size = dict(self.headers[start:]).get(_OURS + "size") or b""
        return int(size) if size.isdigit() else 0

    def destination(self, to: str | None, topics: Collection[str]) -> str | Refusal:
        """Give the topic that the record goes back to: ``to``, or the one it came from."""
        size = self._original_size()
        if size > len(self.value or b""):
            return Refusal(f"only the first {len(self.value or b''):,} of {size} bytes are here")
        if to is None and ROW in dict(self.headers):
            return Refusal("it is a row as JSON, and no record of a topic; name one with --to")
        topic = to or self.told("topic")
        if not topic:
            return Refusal("it does not say which topic it came from; name one with --to")
        if topic not in topics:
            return Refusal(f"there is no topic {topic!r}; name another with --to")
        return topic
