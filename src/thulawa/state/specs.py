"""The specification of a store: its name, kind and options, part of the topology."""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from thulawa.core.serdes import Serde
from thulawa.state.backing import Backing
from thulawa.state.buffers import TimeOrderedBuffer
from thulawa.state.codec import ColumnCodec
from thulawa.state.key_identity import Keys
from thulawa.state.key_value_store import KeyValueStore
from thulawa.state.session_store import SessionStore
from thulawa.state.versioned_store import VersionedStore
from thulawa.state.window_store import JoinStore, WindowStore

__all__ = ["Store", "StoreKind", "StoreSpec"]

StoreKind: TypeAlias = Literal["key-value", "window", "session", "versioned", "join", "buffer"]
Store: TypeAlias = (
    KeyValueStore | WindowStore | SessionStore | VersionedStore | JoinStore | TimeOrderedBuffer
)


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
        name, retention = self.name, self.retention
        keys, values = Keys(self.key_serde), ColumnCodec(self.value_serde)
        match self.kind:
            case "key-value":
                return KeyValueStore(name, backing, keys=keys, values=values)
            case "window":
                return WindowStore(
                    name, backing, size=self.size, retention=retention, keys=keys, values=values
                )
            case "session":
                return SessionStore(name, backing, retention=retention, keys=keys, values=values)
            case "versioned":
                return VersionedStore(name, backing, history=retention, keys=keys, values=values)
            case "join":
                return JoinStore(name, backing, retention=retention, keys=keys, values=values)
            case "buffer":
                return TimeOrderedBuffer(name, backing, keys=keys, values=values)
