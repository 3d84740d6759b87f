"""Avro's schema resolution: data of one schema, read as another one would have it.

The two schemas are walked together once, and become one function. What cannot be brought together
is an error of the datum, not of the schemas: a union may hold branches that never occur. Schemas
are first made plain: names are replaced by what they name, so that a type which refers to itself
is a ring of dictionaries, and a pair of types is known by the identity of the two.
"""

import json
from collections.abc import Callable
from typing import Any, TypeAlias

from thulawa.core.avro import (
    PRIMITIVES,
    Codec,
    Data,
    Read,
    array_codec,
    deeper,
    enum_codec,
    fixed_codec,
    map_codec,
    union_codec,
)
from thulawa.core.errors import ConfigurationError

__all__ = ["read_as"]

_Schema: TypeAlias = dict[str, Any]

_PROMOTIONS: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("int", "long"): int,
    ("int", "float"): float,
    ("int", "double"): float,
    ("long", "float"): float,
    ("long", "double"): float,
    ("float", "double"): float,
    ("string", "bytes"): str.encode,
    ("bytes", "string"): bytes.decode,
}


def read_as(written: str, wanted: str) -> Callable[[bytes], Any]:
    """Give the function that reads data of the schema ``written`` as ``wanted``.

    >>> old = '{"type": "record", "name": "P", "fields": [{"name": "n", "type": "int"}]}'
    >>> new = '''{"type": "record", "name": "P", "fields": [
    ...     {"name": "number", "aliases": ["n"], "type": "double"},
    ...     {"name": "unit", "type": "string", "default": "m"}]}'''
    >>> read_as(old, new)(b"6")
    {'number': 27.0, 'unit': 'm'}
    """
    read = _Pairs().read(_plain(json.loads(written), "", {}), _plain(json.loads(wanted), "", {}))

    def whole(data: bytes) -> Any:
        source = Data(data)
        value = read(source, 0)
        if source.left:
            raise ValueError("bytes are left over")
        return value

    return whole


# --- schemas without names


def _plain(schema: Any, space: str, names: dict[str, _Schema]) -> _Schema:
    """Give a schema in which every type is a dictionary."""
    if isinstance(schema, list):
        return {"type": "union", "branches": [_plain(branch, space, names) for branch in schema]}
    if isinstance(schema, str):
        return _by_name(schema, space, names)
    kind = schema["type"]
    if kind in ("array", "map"):
        inner = schema["items"] if kind == "array" else schema["values"]
        return {"type": kind, "of": _plain(inner, space, names)}
    named = kind in ("record", "enum", "fixed")
    return _named(schema, space, names) if named else _plain(kind, space, names)


def _by_name(name: str, space: str, names: dict[str, _Schema]) -> _Schema:
    if name in PRIMITIVES:
        return {"type": name}
    found = names.get(_full(name, space)) or names.get(name)
    if found is None:
        raise ConfigurationError(f"the Avro schema uses {name!r}, which it does not define")
    return found


def _named(schema: Any, space: str, names: dict[str, _Schema]) -> _Schema:
    full = _full(schema["name"], schema.get("namespace", space))
    inner = full.rpartition(".")[0]
    known = {full.rpartition(".")[2], *(alias.rpartition(".")[2] for alias in _aliases(schema))}
    result = names[full] = {**schema, "known_as": known, "fields": []}
    result["fields"] = [
        {**field, "type": _plain(field["type"], inner, names)} for field in schema.get("fields", ())
    ]
    return result


def _full(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"


def _aliases(schema: Any) -> list[str]:
    aliases: list[str] = schema.get("aliases", [])
    return aliases


# --- pairs of schemas


class _Pairs:
    """Makes the function of each pair of types once, so that rings end."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int], Read] = {}

    def read(self, written: _Schema, wanted: _Schema) -> Read:
        pair = id(written), id(wanted)
        if pair not in self._made:
            # Until the function is made, those that refer to it find it when they are called.
            self._made[pair] = lambda data, depth: self._made[pair](data, depth)  # noqa: PLW0108
            self._made[pair] = self._make(written, wanted) or _impossible
        return self._made[pair]

    def _make(self, written: _Schema, wanted: _Schema) -> Read | None:
        """Give the function of a pair; None if the one cannot be read as the other."""
        if written["type"] == "union":
            branches = [_only(self.read(branch, wanted)) for branch in written["branches"]]
            return union_codec(branches).read
        if wanted["type"] == "union":
            branch = _first_match(written, wanted["branches"])
            return None if branch is None else self.read(written, branch)
        return self._of_one_kind(written, wanted) if _match(written, wanted) else None

    def _of_one_kind(self, written: _Schema, wanted: _Schema) -> Read | None:
        match wanted["type"]:
            case "array":
                return array_codec(_only(self.read(written["of"], wanted["of"]))).read
            case "map":
                return map_codec(_only(self.read(written["of"], wanted["of"]))).read
            case "record":
                return self._record(written, wanted)
            case "enum":
                return _symbol(written["symbols"], wanted["symbols"], wanted.get("default"))
            case "fixed":
                return fixed_codec(wanted["size"]).read
        return _primitive(written["type"], wanted["type"])

    def _record(self, written: _Schema, wanted: _Schema) -> Read | None:
        names = {
            name: field
            for field in reversed(wanted["fields"])
            for name in (*_aliases(field), field["name"])
        }
        steps: list[tuple[str | None, Read]] = []
        for field in written["fields"]:
            target = names.get(field["name"])
            if target is None:
                steps.append((None, self.read(field["type"], field["type"])))
            else:
                steps.append((target["name"], self.read(field["type"], target["type"])))
        given = {name for name, _ in steps}
        missing = [field for field in wanted["fields"] if field["name"] not in given]
        if any("default" not in field for field in missing):
            return None
        order = [field["name"] for field in wanted["fields"]]

        def read(data: Data, depth: int) -> dict[str, Any]:
            inner = deeper(depth)
            found = {name: read_field(data, inner) for name, read_field in steps}
            for field in missing:
                found[field["name"]] = _default(field["type"], field["default"])
            return {name: found[name] for name in order}

        return read


def _impossible(_data: Data, _depth: int) -> Any:
    raise ValueError("written with a schema that cannot be read as this one")


def _first_match(written: _Schema, branches: list[_Schema]) -> _Schema | None:
    for promote in (False, True):
        for branch in branches:
            if _match(written, branch, promote=promote):
                return branch
    return None


def _match(written: _Schema, wanted: _Schema, *, promote: bool = True) -> bool:
    kinds = written["type"], wanted["type"]
    if kinds[0] != kinds[1]:
        return promote and kinds in _PROMOTIONS
    if kinds[0] == "fixed" and written["size"] != wanted["size"]:
        return False
    return "known_as" not in written or bool(written["known_as"] & wanted["known_as"])


def _primitive(written: str, wanted: str) -> Read:
    read = PRIMITIVES[written].read
    if written == wanted:
        return read
    promoted = _PROMOTIONS[written, wanted]
    return lambda data, depth: promoted(read(data, depth))


def _only(read: Read) -> Codec:
    """Make a codec of what is only read."""
    return Codec(_never, read, _never)


def _never(*_: Any) -> Any:
    raise NotImplementedError


def _symbol(written: list[str], wanted: list[str], default: str | None) -> Read:
    read_written = enum_codec(written).read

    def read(data: Data, depth: int) -> str:
        found: str = read_written(data, depth)
        symbol = found if found in wanted else default
        if symbol is None:
            raise ValueError("a symbol that this schema does not know")
        return symbol

    return read


def _default(schema: _Schema, value: Any) -> Any:
    """Give a field's default, made anew: of a union it is one of the first branch."""
    kind = schema["type"]
    if kind == "union":
        return _default(schema["branches"][0], value)
    if kind == "array":
        return [_default(schema["of"], item) for item in value]
    if kind == "map":
        return {key: _default(schema["of"], item) for key, item in value.items()}
    if kind == "record":
        return {
            field["name"]: _default(field["type"], value.get(field["name"], field.get("default")))
            for field in schema["fields"]
        }
    if kind in ("bytes", "fixed"):
        value = value.encode("latin-1")
    return float(value) if kind in ("float", "double") else value
