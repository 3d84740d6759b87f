"""Many keys of one partition at once, each key in order, nothing lost.

Names are loaded when first used, so that a Spark worker that needs the engine alone
does not pay for the rest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thulawa.core.errors import (
        ConfigurationError,
        Overload,
        RecordError,
        Retriable,
        Terminal,
        ThulawaError,
    )
    from thulawa.engine import (
        Adaptive,
        Batch,
        Bounds,
        Engine,
        Lane,
        Lanes,
        Outcome,
        Quarantine,
        Rate,
        Record,
        Retry,
        Sharing,
    )

__version__ = "0.1.0"

_HOMES = {
    "thulawa.core.errors": (
        "ConfigurationError",
        "Overload",
        "RecordError",
        "Retriable",
        "Terminal",
        "ThulawaError",
    ),
    "thulawa.engine": (
        "Adaptive",
        "Batch",
        "Bounds",
        "Engine",
        "Lane",
        "Lanes",
        "Outcome",
        "Quarantine",
        "Rate",
        "Record",
        "Retry",
        "Sharing",
    ),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Adaptive",
    "Batch",
    "Bounds",
    "ConfigurationError",
    "Engine",
    "Lane",
    "Lanes",
    "Outcome",
    "Overload",
    "Quarantine",
    "Rate",
    "Record",
    "RecordError",
    "Retriable",
    "Retry",
    "Sharing",
    "Terminal",
    "ThulawaError",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
