"""The base of window and session stores: entries by key and time, for as long as retained.

What is older than the newest time minus the retention is expired: it is not found, cannot be put,
and is removed. The newest time moves with what is put here, not with the task's stream time.
"""

from thulawa.state.backing import Backing
from thulawa.state.codec import PLAIN_DATA, ColumnCodec
from thulawa.state.key_identity import PLAIN_KEYS, Keys
from thulawa.state.timeline import Timeline

__all__ = ["NEVER", "RetainedStore"]

NEVER = -(2**63)


class RetainedStore:
    """What stores with a retention share: entries by (identity of key, time), and their expiry."""

    __slots__ = (
        "_backing",
        "_identity",
        "_line",
        "_newest",
        "_text",
        "keys",
        "name",
        "retention",
        "values",
    )

    def __init__(
        self,
        name: str,
        backing: Backing,
        *,
        retention: int,
        keys: Keys = PLAIN_KEYS,
        values: ColumnCodec = PLAIN_DATA,
    ) -> None:
        self.name = name
        self.retention = retention
        self.keys = keys
        self._identity = keys.identity
        self._text = keys.text
        self.values = values
        self._backing = backing
        self._line = Timeline()
        self._newest = NEVER
        for identity, time in list(backing.keys()):
            self._line.add(identity, time)
            self._newest = max(self._newest, time)

    def observe(self, time: int) -> bool:
        """Move the newest time, remove what this expires; return whether ``time`` is alive."""
        if time > self._newest:
            self._newest = time
            self.expire(time - self.retention)
        return time > self._newest - self.retention

    def expire(self, horizon: int) -> None:
        """Remove what is at or before a time."""
        earliest = self._line.earliest()
        if earliest is None or earliest > horizon:
            return
        for time, identity in list(self._line.between(NEVER, horizon)):
            self._backing.pop((identity, time), None)
            self._line.remove(identity, time)

    def __len__(self) -> int:
        return len(self._backing)
