"""Check option objects when they are created.

The types of the fields are read from their annotations, so that no field is forgotten. Only what
occurs in options is supported: numbers, strings, literals, other option objects, functions,
exception classes, tuples of these, and unions.
"""

from collections.abc import Callable
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin

from thulawa.errors import ConfigurationError

_Kind: TypeAlias = Any  # an annotation

_NAMES: dict[_Kind, str] = {
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
        kinds = _alternatives(field.type)
        if not any(_is_a(value, kind) for kind in kinds):
            wanted = " or ".join(map(_described, kinds))
            raise ConfigurationError(f"{owner}{field.name} must be {wanted}, not {value!r}")


def _alternatives(kind: _Kind) -> tuple[_Kind, ...]:
    origin: Any = get_origin(kind)
    return get_args(kind) if origin in (Union, UnionType) else (kind,)


def _is_a(value: object, kind: _Kind) -> bool:
    origin: Any = get_origin(kind)
    arguments = get_args(kind)
    if origin is Literal:
        return value in arguments
    if origin is tuple:
        return isinstance(value, tuple) and all(_is_a(each, arguments[0]) for each in value)
    if origin is type:
        return isinstance(value, type) and issubclass(value, arguments[0])
    if origin is Callable:
        return callable(value)
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float if kind is float else kind)


def _described(kind: _Kind) -> str:
    origin: Any = get_origin(kind)
    arguments = get_args(kind)
    if origin is Literal:
        return "one of " + ", ".join(map(repr, arguments))
    if origin is tuple:
        return f"a tuple, each {_described(arguments[0])}"
    if origin is type:
        return f"a class of {arguments[0].__name__}"
    if origin is Callable:
        return "a function"
    return _NAMES.get(kind) or f"made with {kind.__name__}(...)"
