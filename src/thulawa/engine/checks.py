"""Check option objects when they are created.

The types of the fields are read from their annotations, so that no field is forgotten. Only what
occurs in options is supported: numbers, strings, literals, other option objects, functions,
exception classes, tuples of these, and unions.
"""

from collections.abc import Callable
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from thulawa.errors import ConfigurationError

_NAMES: dict[Any, str] = {
    NoneType: "None",
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a string",
}


def require(condition: object, reason: str) -> None:
    """Raise `ConfigurationError` with the reason unless the condition holds."""
    if not condition:
        raise ConfigurationError(reason)


def check_types(part: Any, prefix: str | None = None) -> None:
    """Raise `ConfigurationError` for a field of the wrong type; a bool is not a number here."""
    owner = f"{type(part).__name__}." if prefix is None else prefix
    for field in fields(part):
        value = getattr(part, field.name)
        union: Any = get_origin(field.type) in (Union, UnionType)
        kinds = [_kind_of(one) for one in (get_args(field.type) if union else (field.type,))]
        if not any(fits(value) for _, fits in kinds):
            wanted = " or ".join(title for title, _ in kinds)
            raise ConfigurationError(f"{owner}{field.name} must be {wanted}, not {value!r}")


def _kind_of(annotation: Any) -> tuple[str, Callable[[Any], bool]]:
    """Return a description of an annotation's values, and a function that recognises them."""
    origin: Any = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Literal:
        return "one of " + ", ".join(map(repr, arguments)), lambda value: value in arguments
    if origin is tuple:
        title, fits = _kind_of(arguments[0])
        return (
            f"a tuple, each {title}",
            lambda value: isinstance(value, tuple) and all(map(fits, value)),
        )
    if origin is type:
        base = arguments[0]
        return (
            f"a class of {base.__name__}",
            lambda value: isinstance(value, type) and issubclass(value, base),
        )
    if origin is Callable:
        return "a function", callable
    kind = int | float if annotation is float else annotation
    return (
        _NAMES.get(annotation) or f"made with {annotation.__name__}(...)",
        lambda value: annotation is bool if isinstance(value, bool) else isinstance(value, kind),
    )
