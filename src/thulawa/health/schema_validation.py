"""Validation by JSON Schema: the part of it that describes messages, compiled to a decoder.

A schema becomes a type of msgspec, which decodes and checks a document in one pass: about a million
small messages a second on one core. Supported are ``type`` (also a list of types), ``properties``,
``required``, ``additionalProperties`` (false, or a schema), ``items``, ``enum`` and ``const`` of
texts and whole numbers, ``minimum``, ``maximum``, ``exclusiveMinimum``, ``exclusiveMaximum``,
``multipleOf``, ``minLength``, ``maxLength``, ``pattern``, ``minItems``, ``maxItems``. Notes
(``title``, ``description``, …) are ignored; any other keyword is rejected, since ignoring a rule
would count invalid messages as valid. An integer is written without a point (``1.0`` is not one),
and of two equal keys in an object the last is checked.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Union

import msgspec

from thulawa.errors import ConfigurationError

_NOTES = {"$schema", "$id", "$comment", "title", "description", "default", "examples"}
_NUMBERS = {
    "minimum": "ge",
    "maximum": "le",
    "exclusiveMinimum": "gt",
    "exclusiveMaximum": "lt",
    "multipleOf": "multiple_of",
}
_RULES: dict[str, dict[str, str]] = {
    "integer": _NUMBERS,
    "number": _NUMBERS,
    "string": {"minLength": "min_length", "maxLength": "max_length", "pattern": "pattern"},
    "array": {"minItems": "min_length", "maxItems": "max_length", "items": ""},
    "object": {"properties": "", "required": "", "additionalProperties": ""},
    "boolean": {},
    "null": {},
}


def json_schema(schema: Mapping[str, Any]) -> Callable[[bytes | None], bool]:
    """Create a function that returns whether a message is JSON that is valid by a schema.

    >>> is_valid = json_schema(
    ...     {
    ...         "type": "object",
    ...         "required": ["id"],
    ...         "properties": {"id": {"type": "integer", "minimum": 1}},
    ...     }
    ... )
    >>> is_valid(b'{"id": 7}'), is_valid(b'{"id": 0}'), is_valid(b'{"id"'), is_valid(None)
    (True, False, False, False)
    """
    if not isinstance(schema, Mapping):
        raise ConfigurationError(
            f"{schema!r} is not a schema: pass a dict, such as json.loads returns"
        )
    check = _Check(dict(schema))
    try:
        check(b"null")  # so that a bad schema is rejected here, not with the first message
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"this schema cannot be checked: {error}") from error
    return check


class _Check:
    """Checks one message; pickled as the schema, since a decoder cannot be pickled."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema

    def __call__(self, value: bytes | None) -> bool:
        if value is None:
            return False
        try:
            if not value.isascii():
                value.decode()  # msgspec does not decode the members that it skips
            self._decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False  # RecursionError: nested too deeply
        return True

    @functools.cached_property
    def _decode(self) -> Callable[[bytes], Any]:
        return msgspec.json.Decoder(_type(self._schema, "schema")).decode

    def __reduce__(self) -> tuple[type["_Check"], tuple[dict[str, Any]]]:
        return _Check, (self._schema,)


def _type(schema: Any, at: str) -> Any:
    """Return the type whose documents are those that are valid by a schema."""
    if schema is True or schema == {}:
        return Any
    if not isinstance(schema, Mapping):
        raise ConfigurationError(f"{at}: {schema!r} is not a schema")
    rules = {name: rule for name, rule in schema.items() if name not in _NOTES}
    for name in ("enum", "const"):
        if name in rules:
            return _choice(rules, name, at)
    names = _names(rules.pop("type", None) or _guessed(rules, at), at)
    known = {rule for name in names for rule in _RULES.get(name, {})}
    if unknown := sorted(set(rules) - known):
        raise ConfigurationError(f"{at}: the keyword {unknown[0]!r} is not known for {names}")
    return Union[tuple(_one(name, rules, at) for name in names)]  # noqa: UP007 made at run time


def _names(kinds: Any, at: str) -> list[str]:
    names = [kinds] if isinstance(kinds, str) else list(kinds)
    for name in names:
        if name not in _RULES:
            raise ConfigurationError(f"{at}: {name!r} is not a type; known are {sorted(_RULES)}")
    return names


def _guessed(rules: Mapping[str, Any], at: str) -> str:
    """Return the type that the rules of a schema without ``type`` belong to."""
    for name in ("object", "array"):
        if set(rules) & set(_RULES[name]):
            return name
    for unknown in sorted(set(rules) - {rule for known in _RULES.values() for rule in known}):
        raise ConfigurationError(f"{at}: the keyword {unknown!r} is not known")
    raise ConfigurationError(f"{at}: add a type")


def _choice(rules: dict[str, Any], name: str, at: str) -> Any:
    choices = rules["enum"] if name == "enum" else [rules["const"]]
    if set(rules) - {name, "type"} or not choices:
        raise ConfigurationError(f"{at}: beside {name} there may be a type alone")
    if not all(type(choice) in _CHOICES for choice in choices):
        raise ConfigurationError(f"{at}: {name} may hold texts, whole numbers and null")
    if "type" in rules:
        names = set(_names(rules["type"], at))
        choices = [choice for choice in choices if names & _CHOICES[type(choice)]]
        if not choices:
            raise ConfigurationError(f"{at}: no choice of {name} is of type {sorted(names)}")
    return Literal[tuple(choices)]


# what may be in an enum, and the types it is of
_CHOICES: dict[type, set[str]] = {
    str: {"string"},
    int: {"integer", "number"},
    type(None): {"null"},
}


def _one(name: str, rules: Mapping[str, Any], at: str) -> Any:
    if name == "object":
        return _object(rules, at)
    kind: Any = _PLAIN.get(name)
    if name == "array":
        kind = list[_type(rules.get("items", {}), f"{at}.items")]  # type: ignore[misc] # at run time
    limits = {own: rules[rule] for rule, own in _RULES[name].items() if own and rule in rules}
    try:
        return Annotated[kind, msgspec.Meta(**limits)] if limits else kind
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{at}: {error}") from error


_PLAIN: dict[str, Any] = {
    "integer": int,
    "number": float,
    "string": str,
    "boolean": bool,
    "null": None,
}


def _object(rules: Mapping[str, Any], at: str) -> Any:
    properties: Mapping[str, Any] = rules.get("properties", {})
    required = set(rules.get("required", ()))
    others = rules.get("additionalProperties", True)
    if not properties and not required:
        if others is False:
            return msgspec.defstruct("Message", [], forbid_unknown_fields=True)
        return dict[str, _type(others, f"{at}.*")]  # type: ignore[misc] # at run time
    if others not in (True, False):
        raise ConfigurationError(
            f"{at}: additionalProperties with a schema goes with no properties of their own"
        )
    fields: list[Any] = []
    for index, name in enumerate(dict.fromkeys([*properties, *sorted(required)])):
        kind = _type(properties.get(name, {}), f"{at}.{name}")
        if name in required:
            field = msgspec.field(name=name)
        else:
            kind = kind if kind is Any else Union[kind, msgspec.UnsetType]  # noqa: UP007
            field = msgspec.field(name=name, default=msgspec.UNSET)
        fields.append((f"f{index}", kind, field))
    return msgspec.defstruct("Message", fields, kw_only=True, forbid_unknown_fields=others is False)
