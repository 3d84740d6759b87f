"""The backings of a test driver's stores: with a changelog, and merged over several tasks."""

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from thulawa.core.records import Window, Windowed
from thulawa.errors import ConfigurationError
from thulawa.state.key_identity import Keys
from thulawa.state.specs import StoreSpec

# key of the backing, old entry, new entry; None: no entry
OnChange = Callable[[Any, Any, Any], None]


def changelog_topic(store: str) -> str:
    """Return the name of a store's changelog, without the application's id.

    >>> changelog_topic("counts")
    'counts-changelog'
    """
    return f"{store}-changelog"


class LoggedBacking(dict[Any, Any]):
    """The backing of a store that reports each change."""

    def __init__(self, on_change: OnChange) -> None:
        super().__init__()
        self._on_change = on_change

    def __setitem__(self, key: Any, value: Any, /) -> None:
        before = self.get(key)
        super().__setitem__(key, value)
        self._on_change(key, before, value)

    def pop(self, key: Any, default: Any = None, /) -> Any:
        """Remove a key and return its value."""
        before = super().pop(key, None)
        if before is None:
            return default
        self._on_change(key, before, None)
        return before


class MergedBacking(dict[Any, Any]):
    """A read-only copy of the entries of one store over all tasks.

    A key that several tasks have is rejected: the store is then not partitioned by key.
    """

    def __init__(self, store: str, tasks: Mapping[int, Mapping[Any, Any]]) -> None:
        super().__init__()
        owners: dict[Any, int] = {}
        for number, entries in tasks.items():
            for key, entry in entries.items():
                if owners.setdefault(key, number) != number:
                    raise ConfigurationError(
                        f"tasks {owners[key]} and {number} both have the key {key!r} in the store "
                        f"{store!r}; read one of them with task=…"
                    )
                dict.__setitem__(self, key, entry)
        self._store = store

    def __setitem__(self, key: Any, value: Any, /) -> NoReturn:
        self._reject()

    def pop(self, key: Any, default: Any = None, /) -> NoReturn:  # noqa: ARG002 of a mapping
        """Raise `ConfigurationError`: the copy is read-only."""
        self._reject()

    def _reject(self) -> NoReturn:
        raise ConfigurationError(
            f"the store {self._store!r} is a read-only copy over several tasks; "
            "to change it, choose a task with task=…"
        )


def changelog_record(spec: StoreSpec, key: Any, before: Any, after: Any) -> tuple[Any, Any, Any]:
    """Return key, value and timestamp of a change; the timestamp of a deletion is None.

    Keys of window and session stores are `Windowed`. The values of join stores and buffers are
    their entries: several values, or a time and a value.
    """
    key_of = Keys(spec.key_serde).key
    match spec.kind:
        case "key-value":
            return key_of(key), *(after or (None, None))
        case "window":
            window = Window(key[1], key[1] + spec.size)
            return Windowed(key_of(key[0]), window), *(after or (None, None))
        case "session":  # entries are (start, value), by key and end
            start, end = (before if after is None else after)[0], key[1]
            value = None if after is None else after[1]
            return Windowed(key_of(key[0]), Window(start, end)), value, end
        case "versioned" if after is not None:
            added = [version for version in after if before is None or version not in before]
            timestamp, value = (added or after)[-1]
            return key_of(key), value, timestamp
        case "versioned":
            return key_of(key), None, None
        case _:
            return key, after, None
