"""Convert rows between Arrow and Python lazily, in both directions.

An input batch stays in Arrow. A row refers to its batch and its position; the first access to a
column converts it to Python values, once for the whole batch. Kept columns are never converted:
they are copied by position.
"""

import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, tzinfo
from functools import cache, partial
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa

from thulawa.errors import WrongResult


class LazyBatch:
    """An Arrow batch whose columns are converted to Python values on first access."""

    __slots__ = ("arrow", "values")

    def __init__(self, arrow: pa.RecordBatch) -> None:
        self.arrow = arrow
        self.values: list[list[Any] | None] = [None] * arrow.num_columns

    def column(self, index: int) -> list[Any]:
        """Return the values of a column."""
        values = self.values[index]
        if values is None:
            values = self.values[index] = _python_values(self.arrow.column(index))
        return values


def _python_values(column: pa.Array) -> list[Any]:
    """Return a column's values; text that is not UTF-8 has U+FFFD in it, as in Spark's functions.

    Spark does not look at bytes that it casts to strings. One such value must not fail the others.
    """
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        return list(map(_replaced, column))
    return values


def _replaced(value: pa.Scalar) -> Any:
    """Return a value, with what is not UTF-8 replaced in all text in it."""
    if not value.is_valid:
        return None
    match value:
        case pa.StringScalar() | pa.LargeStringScalar():
            return value.as_buffer().to_pybytes().decode(errors="replace")
        case pa.StructScalar():
            return {name: _replaced(one) for name, one in value.items()}
        case pa.MapScalar():
            return [(_replaced(one["key"]), _replaced(one["value"])) for one in value.values]
        case pa.ListScalar() | pa.LargeListScalar():
            return list(map(_replaced, value.values))
    return value.as_py()


class Row(msgspec.Struct, eq=False, gc=False):
    """One row of a batch; columns are attributes.

    A msgspec struct, because one is created per row, at half the cost of a Python object. It needs
    no garbage collection: nothing it refers to refers back.
    """

    _batch: LazyBatch
    _index: int
    _names: ClassVar[tuple[str, ...]] = ()

    def __getitem__(self, column: str | int) -> Any:
        if isinstance(column, str):
            if column not in self._names:
                known = ", ".join(self._names)
                raise KeyError(f"the row has no column {column!r}; its columns are {known}")
            column = self._names.index(column)
        return self._batch.column(column)[self._index]

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self._names)))

    def __len__(self) -> int:
        return len(self._names)

    def as_dict(self) -> dict[str, Any]:
        """Return the row as a dictionary."""
        return dict(zip(self._names, self, strict=True))

    def __repr__(self) -> str:
        return f"Row({', '.join(f'{name}={value!r}' for name, value in self.as_dict().items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self._names, tuple(self))


def row_type(names: Sequence[str]) -> type[Row]:
    """Create the class of rows with these columns; columns that are no identifiers need ``[]``.

    Its name lists the columns, because Python shows it in the error for a missing attribute. (A
    ``__getattr__`` for this error would slow down every access.)
    """
    body: dict[str, Any] = {"_names": tuple(names)}
    for index, name in enumerate(names):
        if name.isidentifier() and not hasattr(Row, name):
            body[name] = property(_getter(index))
    created: type[Row] = types.new_class(
        f"Row({', '.join(names)})", (Row,), exec_body=lambda space: space.update(body)
    )
    return created


def _getter(index: int) -> Callable[[Row], Any]:
    def get(row: Row) -> Any:
        batch = row._batch  # noqa: SLF001 its own class's accessor
        values = batch.values[index]
        if values is None:  # checked here, not in column(), to save a call per value
            values = batch.column(index)
        return values[row._index]  # noqa: SLF001

    return get


def _rebuilt(names: tuple[str, ...], values: tuple[Any, ...]) -> Row:
    arrow = pa.RecordBatch.from_pylist([dict(zip(names, values, strict=True))])
    return row_type(names)(LazyBatch(arrow), 0)


_BARE = frozenset({type(None), bool, int, float, str, bytes})


class Results:
    """Converts results of the function to Arrow columns of the declared schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._names = schema.names
        self._width = len(schema)

    def columns(self, results: list[Any]) -> list[pa.Array]:
        """Return the Arrow columns of results; raise if one does not fit."""
        return [
            _to_arrow(values, field.type)
            for values, field in zip(self._values(results), self._schema, strict=True)
        ]

    def _values(self, results: list[Any]) -> Iterable[Sequence[Any]]:
        """Return the values of each column; results of one type are not checked one by one."""
        types = set(map(type, results))
        if types <= _BARE and self._width == 1:
            return (results,)
        if types != {tuple} or set(map(len, results)) != {self._width}:
            results = [self._tuple(result) for result in results]
        return [list(map(itemgetter(index), results)) for index in range(self._width)]

    def _tuple(self, result: Any) -> tuple[Any, ...]:
        if type(result) is tuple and len(result) == self._width:
            return result
        if result is None:
            return (None,) * self._width
        if (fields := _named(result)) is not None:
            if unknown := fields.keys() - set(self._names):
                raise WrongResult(f"unknown columns {sorted(unknown)}; declared: {self._names}")
            return tuple(map(fields.get, self._names))
        if self._width != 1 or isinstance(result, tuple):
            raise WrongResult(
                f"{result!r:.60} where a row, a dict or a tuple of {self._names} was expected"
            )
        return (result,)


Adapt: TypeAlias = Callable[[Any], Any]


class _Guard(NamedTuple):
    """The types that need no conversion, and the conversion of others."""

    plain: frozenset[type]
    adapt: Adapt


def _to_arrow(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return a column of a type; raise if a value does not fit, and alter none.

    Arrow alone would alter some silently: it truncates floats for an integer column, reads a time
    without zone as UTC and a number as microseconds, fills a struct from a row by position though
    the row has names, and ignores unknown entries.
    """
    guard = _guard(kind)
    if guard is not None and not guard.plain.issuperset(map(type, values)):
        values = list(map(guard.adapt, values))
    return pa.array(values, type=kind)


def _named(value: Any) -> Mapping[str, Any] | None:
    """Return the fields of a value by name; None if it has no names."""
    if isinstance(value, dict):
        return value
    for how in ("as_dict", "asDict", "_asdict"):  # our rows, Spark's, named tuples
        if hasattr(value, how):
            fields: Mapping[str, Any] = getattr(value, how)()
            return fields
    return None


@cache
def _guard(kind: pa.DataType) -> _Guard | None:
    plain: tuple[type, ...] = ()
    adapt: Adapt | None = None
    if pa.types.is_integer(kind):
        plain, adapt = (int,), _whole
    elif pa.types.is_date(kind):
        plain, adapt = (date,), _day
    elif pa.types.is_timestamp(kind):
        zone = None if kind.tz is None else pa.lib.string_to_tzinfo(kind.tz)
        adapt = partial(_moment, zone)
    elif pa.types.is_struct(kind):
        adapt = partial(_fields, {field.name: _adapt(field.type) for field in kind})
    elif pa.types.is_map(kind):
        adapt = partial(_pairs, _adapt(kind.key_type), _adapt(kind.item_type))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        adapt = partial(_items, _adapt(kind.value_type))
    return None if adapt is None else _Guard(frozenset({type(None), *plain}), _or_none(adapt))


def _adapt(kind: pa.DataType) -> Adapt:
    guard = _guard(kind)
    return (lambda value: value) if guard is None else guard.adapt


def _or_none(adapt: Adapt) -> Adapt:
    return lambda value: None if value is None else adapt(value)


def _whole(value: Any) -> Any:
    if isinstance(value, int) or not hasattr(value, "is_integer"):
        return value  # Arrow decides
    if not value.is_integer():
        raise WrongResult(f"{value} is no whole number")
    return int(value)


def _day(value: Any) -> Any:
    if not isinstance(value, date):
        raise WrongResult(f"{type(value).__name__} where a date was expected")
    return value


def _moment(zone: tzinfo | None, value: Any) -> datetime:
    if not isinstance(value, date):
        raise WrongResult(f"{type(value).__name__} where a datetime was expected")
    moment = value if isinstance(value, datetime) else datetime.combine(value, time())
    return moment.replace(tzinfo=zone) if zone is not None and moment.tzinfo is None else moment


def _fields(adapts: Mapping[str, Adapt], value: Any) -> Any:
    fields = _named(value)
    if fields is None:
        if not isinstance(value, tuple) or len(value) != len(adapts):
            raise WrongResult(
                f"{value!r:.60} where a row, a dict or a tuple of {[*adapts]} was expected"
            )
        fields = dict(zip(adapts, value, strict=True))
    if unknown := fields.keys() - adapts.keys():
        raise WrongResult(f"unknown columns {sorted(unknown)}; declared: {[*adapts]}")
    return {name: adapt(fields.get(name)) for name, adapt in adapts.items()}


def _pairs(key: Adapt, item: Adapt, value: Any) -> list[tuple[Any, Any]]:
    pairs = value.items() if isinstance(value, Mapping) else value
    return [(key(one), item(other)) for one, other in pairs]


def _items(item: Adapt, value: Any) -> Any:
    # text is no list of characters: Arrow raises for it
    return value if isinstance(value, str | bytes) else [item(one) for one in value]
