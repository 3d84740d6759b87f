"""The session store: values by key and session.

Sessions of one key never overlap, so a session is identified by its end, which also decides its
expiry.
"""

from collections.abc import Iterator
from typing import Any

from thulawa.core.records import Window, Windowed
from thulawa.state.retained_store import NEVER, RetainedStore

__all__ = ["SessionStore"]

_FOREVER = 2**63


class SessionStore(RetainedStore):
    """Store one value per key and session [start, end].

    >>> store = SessionStore("visits", {}, retention=100)
    >>> store.put("a", Window(5, 9), 2)
    >>> store.overlapping("a", 8, 20), store.fetch("a", Window(5, 9))
    ([(Window(start=5, end=9), 2)], 2)
    """

    __slots__ = ()

    def put(self, key: Any, session: Window, value: Any) -> None:
        """Set the value of a session; None removes it, and an expired session is ignored."""
        start, end = session
        identity = self._identity(key)
        self.values.check(value)
        alive = self.observe(end)
        if value is None:
            self.remove(key, session)
        elif alive:
            self._backing[identity, end] = (start, value)
            self._timeline.add(identity, end)

    def remove(self, key: Any, session: Window) -> None:
        """Remove a session, if it exists."""
        identity = self._identity(key)
        self._backing.pop((identity, session.end), None)
        self._timeline.remove(identity, session.end)

    def fetch(self, key: Any, session: Window) -> Any:
        """Return the value of exactly this session, or None."""
        entry = self._backing.get((self._identity(key), session.end))
        return entry[1] if entry is not None and entry[0] == session.start else None

    def overlapping(
        self, key: Any, earliest_end: int, latest_start: int
    ) -> list[tuple[Window, Any]]:
        """Return the sessions of a key that end and start within these bounds, ordered by end."""
        found = []
        identity = self._identity(key)
        for end in self._timeline.times(identity, earliest_end, _FOREVER):
            start, value = self._backing.get((identity, end))
            if start <= latest_start:
                found.append((Window(start, end), value))
        return found

    def ending(self, first: int, last: int) -> Iterator[tuple[Windowed[Any], Any]]:
        """Yield all sessions that end from ``first`` to ``last``, by end, then key."""
        for end, identity in list(self._timeline.between(first, last)):
            start, value = self._backing.get((identity, end))
            yield Windowed(self.keys.key(identity), Window(start, end)), value

    def all(self) -> Iterator[tuple[Windowed[Any], Any]]:
        """Return an iterator over all sessions and their values."""
        return self.ending(NEVER, _FOREVER)
