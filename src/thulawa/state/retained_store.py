"""The base of window, session and join stores: entries by key and time, with a retention.

An entry expires when its time is not above the newest time minus the retention: it is removed, and
cannot be put again. The newest time is that of the entries put here, not the task's stream time.
"""

from thulawa.state.backing import Backing
from thulawa.state.codec import PLAIN_DATA, ColumnCodec
from thulawa.state.key_identity import PLAIN_KEYS, Keys
from thulawa.state.timeline import Timeline

__all__ = ["NEVER", "RetainedStore"]

NEVER = -(2**63)


class RetainedStore:
    """Hold entries by (key identity, time), and expire them."""

    __slots__ = (
        "_backing",
        "_identity",
        "_newest",
        "_text",
        "_timeline",
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
        self._timeline = Timeline()
        self._newest = NEVER
        for identity, time in list(backing.keys()):
            self._timeline.add(identity, time)
            self._newest = max(self._newest, time)

    def observe(self, time: int) -> bool:
        """Advance the newest time and expire entries; return whether ``time`` is not expired."""
        if time > self._newest:
            self._newest = time
            self.expire(time - self.retention)
        return time > self._newest - self.retention

    def expire(self, horizon: int) -> None:
        """Remove the entries at or before a time."""
        earliest = self._timeline.earliest()
        if earliest is None or earliest > horizon:
            return
        for time, identity in list(self._timeline.between(NEVER, horizon)):
            self._backing.pop((identity, time), None)
            self._timeline.remove(identity, time)

    def __len__(self) -> int:
        return len(self._backing)
