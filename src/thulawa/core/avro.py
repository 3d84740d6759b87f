"""Avro by fastavro, with strict checks of values and of data.

fastavro encodes, decodes and resolves schemas. It is lenient where this library is strict: it
writes ``True`` as an int and a tuple as an array, wraps numbers of more than 64 bits, accepts
negative branch numbers, and lets a few bytes ask for any number of nulls. Two checks are made
before it (docs/adr/0067):

- A value is checked against the schema before it is encoded. The same step chooses the branch of a
  union, which keeps the bytes of a key independent of the library.
- Data is walked through before it is decoded: lengths, counts, numbers and depth are in bounds, and
  the last byte of the value is the last byte of the data.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from io import BytesIO
from typing import Any

from fastavro import parse_schema, schemaless_reader, schemaless_writer
from fastavro.read import LOGICAL_READERS, SchemaResolutionError
from fastavro.schema import SchemaParseException, UnknownType

from thulawa.core.avro_types import PRIMITIVES, Cursor, Schema, Types
from thulawa.errors import ConfigurationError

_PROMOTABLE = ("int", "long", "float", "double", "string", "bytes")  # from or to another
_PROMOTIONS: dict[str, Callable[[Any], Any]] = {
    "long": int,
    "float": float,
    "double": float,
    "bytes": str.encode,
    "string": bytes.decode,
}
_EXACT = "thulawa-exact"  # a logical type of our own, to see what fastavro makes of data
_ROOT, _VALUE = "Root", "value"
_BAD_SCHEMA = (SchemaParseException, UnknownType, LookupError, TypeError, AttributeError)
_BAD_DATA = (ValueError, TypeError, LookupError, AttributeError, EOFError, OverflowError)


class Avro:
    """A schema that encodes and decodes values.

    ``references`` are schemas that define types which ``schema`` uses, each before those that use
    it. Logical types are ignored: a timestamp is its number.

    >>> person = Avro('{"type": "record", "name": "P", "fields": [{"name": "n", "type": "int"}]}')
    >>> person.write({"n": 27})
    b'6'
    >>> person.read(b"6")
    {'n': 27}
    """

    def __init__(self, schema: str, references: Sequence[str] = ()) -> None:
        self.schema = schema
        self.references = tuple(references)
        self._parsed, names = _parsed(schema, references)
        self._type = Types(names).type_of(self._parsed["fields"][0]["type"])

    def __reduce__(self) -> tuple[Any, ...]:
        return Avro, (self.schema, self.references)

    def write(self, value: Any) -> bytes:
        """Return the bytes of a value; raise `TypeError` or `ValueError` if it does not fit."""
        out = BytesIO()
        schemaless_writer(out, self._parsed, {_VALUE: self._type.check(value, 0)})
        return out.getvalue()

    def read(self, data: bytes) -> Any:
        """Return the value of bytes; raise `ValueError` unless all of them are valid."""
        self.check(data)
        return _decoded(data, self._parsed)

    def check(self, data: bytes) -> None:
        """Raise `ValueError` unless the data is one valid value, and nothing after it."""
        cursor = Cursor(data)
        self._type.skip(cursor, 0)
        if cursor.remaining:
            raise ValueError("bytes are left over")

    def reader(self, written: "Avro") -> Callable[[bytes], Any]:
        """Return a function that reads data of the schema ``written`` as this schema.

        A datum that cannot be read so raises `ValueError`: unions may have branches that do not
        occur, so the schemas alone do not tell.

        >>> old = '{"type": "record", "name": "P", "fields": [{"name": "n", "type": "int"}]}'
        >>> new = '''{"type": "record", "name": "P", "fields": [
        ...     {"name": "number", "aliases": ["n"], "type": "double"},
        ...     {"name": "unit", "type": "string", "default": "m"}]}'''
        >>> Avro(new).reader(Avro(old))(b"6")
        {'number': 27.0, 'unit': 'm'}
        """
        source, _ = _parsed(written.schema, written.references, exact=True)
        target, names = _parsed(self.schema, self.references, resolve=True)
        order = {
            frozenset(fields): fields
            for fields in (_field_names(schema) for schema in reversed(names.values()))
        }

        def read(data: bytes) -> Any:
            written.check(data)
            try:
                return _arranged(_decoded(data, source, target), order)
            except (SchemaResolutionError, *_BAD_DATA) as error:
                raise ValueError("written with a schema that cannot be read as this one") from error

        return read


def _decoded(data: bytes, written: Schema, wanted: Schema | None = None) -> Any:
    value: Any = schemaless_reader(BytesIO(data), written, wanted)
    return value[_VALUE]


def _arranged(value: Any, order: dict[frozenset[str], list[str]]) -> Any:
    """Return a copy of a value in which records have the order of the schema's fields.

    fastavro keeps the order of the writer, and inserts the same default object into every record.
    """
    if isinstance(value, dict):
        names: Iterable[str] = order.get(frozenset(value), value)
        return {name: _arranged(value[name], order) for name in names}
    if isinstance(value, list):
        return [_arranged(item, order) for item in value]
    return value


# --- schemas


def _parsed(
    schema: str, references: Sequence[str], *, exact: bool = False, resolve: bool = False
) -> tuple[Schema, dict[str, Schema]]:
    """Return fastavro's form of a schema, as the one field of a record, and the types by name.

    The record changes no byte, and only a record is parsed once rather than with every call.
    """
    prepare = partial(_prepared, exact=exact, resolve=resolve)
    names: dict[str, Schema] = {}
    try:
        for reference in references:
            parse_schema(prepare(json.loads(reference)), named_schemas=names)
        field = {"name": _VALUE, "type": prepare(json.loads(schema))}
        root: Schema = {"type": "record", "name": _ROOT, "fields": [field]}
        root = parse_schema(root, named_schemas=names)
        if resolve:
            _set_defaults(names)
    except _BAD_SCHEMA as error:
        raise ConfigurationError(f"not an Avro schema: {error}") from error
    except ValueError as error:
        raise ConfigurationError("an Avro schema is JSON, and this is not") from error
    return root, names


def _prepared(schema: Schema, *, exact: bool, resolve: bool) -> Schema:
    """Return a schema without logical types, whose defaults fastavro does not look at.

    With ``exact`` and ``resolve`` the branches of a union are found by their own type first.
    """
    prepare = partial(_prepared, exact=exact, resolve=resolve)
    if isinstance(schema, list):
        branches = [prepare(branch) for branch in schema]
        return _marked_branches(branches) if resolve else branches
    if not isinstance(schema, dict):
        mark = exact and schema in _PROMOTABLE
        return {"type": schema, "logicalType": _EXACT} if mark else schema
    if not isinstance(schema["type"], str) or schema["type"] in PRIMITIVES:
        return prepare(schema["type"])
    result = {key: value for key, value in schema.items() if key != "logicalType"}
    if exact and schema["type"] == "fixed":
        result["logicalType"] = _EXACT
    for inner in ("items", "values"):
        if inner in result:
            result[inner] = prepare(result[inner])
    if "fields" in result:
        result["fields"] = [
            {("written_default" if key == "default" else key): field[key] for key in field}
            | {"type": prepare(field["type"])}
            for field in result["fields"]
        ]
    return result


def _marked_branches(branches: list[Schema]) -> list[Schema]:
    """Name all primitive types of a reader's union at each of them, for `_promoted`."""
    types = [branch for branch in branches if isinstance(branch, str) and branch in _PROMOTABLE]
    return [{"type": b, _EXACT: types} if b in types else b for b in branches]


def _promoted(data: Any, written: Schema, wanted: Schema = None) -> Any:
    """Return a datum as the reader's type, or as it is if the reader's union has its own type.

    fastavro takes the first branch of a union that a datum can be promoted to.
    """
    if isinstance(wanted, dict):
        if written["type"] in wanted.get(_EXACT, ()):
            return data
        wanted = wanted["type"]
    if wanted is None or wanted == written["type"]:  # None: the field is left out
        return data
    return _PROMOTIONS[wanted](data)


def _exact_fixed(data: bytes, _written: Schema, wanted: Schema = None) -> bytes:
    """Raise if fastavro found an enum or a record by the name of a fixed type."""
    if isinstance(wanted, dict) and wanted["type"] != "fixed":
        raise SchemaResolutionError
    return data


for _primitive in _PROMOTABLE:
    LOGICAL_READERS[f"{_primitive}-{_EXACT}"] = _promoted
LOGICAL_READERS[f"fixed-{_EXACT}"] = _exact_fixed


def _field_names(schema: Schema) -> list[str]:
    return [field["name"] for field in schema.get("fields", ())]


def _set_defaults(names: dict[str, Schema]) -> None:
    """Set the defaults of fields as values of their types: JSON has no bytes, for instance."""
    found = [
        (field, _default(field["type"], field["written_default"], names))
        for schema in names.values()
        for field in schema.get("fields", ())
        if "written_default" in field
    ]
    for field, value in found:
        field["default"] = value


def _default(schema: Schema, value: Any, names: dict[str, Schema]) -> Any:
    """Return a default of a schema as a value: of a union it is one of the first branch."""
    while isinstance(schema, list) or (isinstance(schema, str) and schema in names):
        schema = schema[0] if isinstance(schema, list) else names[schema]
    kind = schema if isinstance(schema, str) else schema["type"]
    if kind == "array":
        return [_default(schema["items"], item, names) for item in value]
    if kind == "map":
        return {key: _default(schema["values"], item, names) for key, item in value.items()}
    if kind == "record":
        return {
            field["name"]: _default(
                field["type"], value.get(field["name"], field.get("written_default")), names
            )
            for field in schema["fields"]
        }
    if kind in ("bytes", "fixed"):
        return value.encode("latin-1")
    return float(value) if kind in ("float", "double") else value
