"""Convert result values to Arrow without altering them; raise for those that do not fit.

Arrow alone would alter some silently: it truncates floats for an integer column, reads a time
without zone as UTC and a number as microseconds, fills a struct from a row by position though the
row has names, and ignores unknown entries.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, tzinfo
from functools import cache, partial
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from thulawa.errors import WrongResult

Adapt: TypeAlias = Callable[[Any], Any]


class _Guard(NamedTuple):
    """The types that need no conversion, and the conversion of others."""

    plain: frozenset[type]
    adapt: Adapt


def to_arrow(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return a column of a type; raise if a value does not fit."""
    guard = _guard(kind)
    if guard is not None and not guard.plain.issuperset(map(type, values)):
        values = list(map(guard.adapt, values))
    return pa.array(values, type=kind)


def named(value: Any) -> Mapping[str, Any] | None:
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
    plain, adapt = _rule(kind)
    return None if adapt is None else _Guard(frozenset({type(None), *plain}), _or_none(adapt))


def _rule(kind: pa.DataType) -> tuple[tuple[type, ...], Adapt | None]:
    """Return the Python types that need no conversion, and the conversion of others."""
    if pa.types.is_integer(kind):
        return (int,), _whole
    if pa.types.is_date(kind):
        return (date,), _day
    if pa.types.is_timestamp(kind):
        zone = None if kind.tz is None else pa.lib.string_to_tzinfo(kind.tz)
        return (), partial(_moment, zone)
    return (), _nested(kind)


def _nested(kind: pa.DataType) -> Adapt | None:
    if pa.types.is_struct(kind):
        return partial(_fields, {field.name: _adapt(field.type) for field in kind})
    if pa.types.is_map(kind):
        return partial(_pairs, _adapt(kind.key_type), _adapt(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return partial(_items, _adapt(kind.value_type))
    return None


def _adapt(kind: pa.DataType) -> Adapt:
    guard = _guard(kind)
    return _unchanged if guard is None else guard.adapt


def _unchanged(value: Any) -> Any:
    return value


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
    fields = named(value)
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
