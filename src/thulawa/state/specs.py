"""The specification of a store: its name, kind and options, part of the topology."""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from thulawa.core.serdes import Serde
from thulawa.state.backing import Backing
from thulawa.state.codec import ColumnCodec
from thulawa.state.key_identity import Keys
from thulawa.state.stores import KeyValueStore, TimeOrderedBuffer, VersionedStore
from thulawa.state.window_stores import JoinStore, SessionStore, WindowStore

StoreKind: TypeAlias = Literal["key-value", "window", "session", "versioned", "join", "buffer"]
Store: TypeAlias = (
    KeyValueStore | WindowStore | SessionStore | VersionedStore | JoinStore | TimeOrderedBuffer
)

_CLASSES: dict[StoreKind, type[Store]] = {
    "key-value": KeyValueStore,
    "window": WindowStore,
    "session": SessionStore,
    "versioned": VersionedStore,
    "join": JoinStore,
    "buffer": TimeOrderedBuffer,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSpec:
    """Describe a store; each task opens an instance of its own.

    Keys are equal if ``key_serde`` writes the same bytes; without one they are plain data.
    ``retention`` applies to window, session and join stores, and is the history of versioned ones.
    With ``changelog`` an application also writes the changes to a compacted topic.
    """

    name: str
    kind: StoreKind = "key-value"
    size: int = 0
    retention: int = 0
    key_serde: Serde[Any] | None = None
    value_serde: Serde[Any] | None = None
    changelog: bool = False

    def open(self, backing: Backing) -> Store:
        """Return the store over a backing."""
        return _CLASSES[self.kind](
            self.name,
            backing,
            size=self.size,
            retention=self.retention,
            keys=Keys(self.key_serde),
            values=ColumnCodec(self.value_serde),
        )
