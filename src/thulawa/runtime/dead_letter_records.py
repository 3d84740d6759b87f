"""Records of a dead-letter topic: the error, and the origin of the record.

The headers are those of Kafka Streams (KIP-1034), ``__streams.errors.*``, and Thulawa's own,
``thulawa.errors.*``.
"""

from collections.abc import Collection
from dataclasses import dataclass

from thulawa.core.types import Headers

ERRORS = "__streams.errors."
ROW = "thulawa.dead_letter"
"""The header of dead letters whose value is a row of `map_by_key`."""

_OWN_ERRORS = "thulawa.errors."


def error_headers_start(headers: Headers, otherwise: int) -> int:
    """Return the index of the first header that a dead letter adds: the last "exception"."""
    starts = (at for at, (name, _) in enumerate(headers) if name == ERRORS + "exception")
    return max(starts, default=otherwise)


@dataclass(frozen=True, slots=True)
class ReplayRejection:
    """The reason why a dead letter cannot be sent back."""

    reason: str


@dataclass(frozen=True, slots=True)
class DeadLetterRecord:
    """A record of a dead-letter topic."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def place(self) -> str:
        """The position in the dead-letter topic: ``partition:offset``."""
        return f"{self.partition}:{self.offset}"

    def error_header(self, name: str) -> str:
        """Return an error header (exception, message, stacktrace, topic, …), or ""."""
        facts = dict(self.headers)
        found = facts.get(ERRORS + name, facts.get(_OWN_ERRORS + name))
        return "" if found is None else found.decode(errors="replace")

    @property
    def origin(self) -> str:
        """Topic, partition and offset of the original record, as far as the headers tell."""
        return ":".join(filter(None, map(self.error_header, ("topic", "partition", "offset"))))

    @property
    def original_headers(self) -> Headers:
        """The headers of the original record."""
        return tuple(
            (name, value)
            for name, value in self.headers
            if name != ROW and not name.startswith((ERRORS, _OWN_ERRORS))
        )

    def _original_size(self) -> int:
        """Return the size of the value before it was truncated; 0 if it was not.

        Only headers behind the exception's are read: those before it are the original record's,
        which anybody may have written.
        """
        start = error_headers_start(self.headers, 0)
        size = dict(self.headers[start:]).get(_OWN_ERRORS + "size") or b""
        return int(size) if size.isdigit() else 0

    def destination(self, to: str | None, topics: Collection[str]) -> str | ReplayRejection:
        """Return the topic to send the record back to: ``to``, or the one it came from."""
        size = self._original_size()
        if size > len(self.value or b""):
            stored = len(self.value or b"")
            return ReplayRejection(f"only the first {stored:,} of {size} bytes are here")
        if to is None and ROW in dict(self.headers):
            return ReplayRejection(
                "it is a row as JSON, not a record of a topic; name a topic with --to"
            )
        topic = to or self.error_header("topic")
        if not topic:
            return ReplayRejection(
                "its headers do not name the topic it came from; name one with --to"
            )
        if topic not in topics:
            return ReplayRejection(f"there is no topic {topic!r}; name another with --to")
        return topic
