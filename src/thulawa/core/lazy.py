"""Namespaces whose names are imported when they are first used."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    namespace: str, homes: Mapping[str, tuple[str, ...]]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__all__``, ``__getattr__`` and ``__dir__`` of a module that defines no names itself.

    ``homes`` maps the modules that define the names to these names. A Spark worker that needs one
    of them does not pay for the imports of the others.
    """
    home_of = {name: module for module, names in homes.items() for name in names}
    names = sorted(home_of)

    def get(name: str) -> Any:
        module = home_of.get(name)
        if module is None:
            raise AttributeError(f"module {namespace!r} has no attribute {name!r}")
        return getattr(import_module(module), name)

    return names, get, lambda: names
