"""What a message is: the status under which it is counted.

A status function takes the message's bytes (None for a message without a value) and answers True
(``valid``), False (``invalid``) or a name of its own. A ValueError counts as ``invalid``: that is
what parsers raise for bad input. Any other error ends the batch: it is a fault of the function, and
counting on would hide it. The same message must always get the same status, whoever counts it.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from thulawa.core.errors import WrongResult

__all__ = ["INVALID", "VALID", "InColumns", "Status", "Values", "in_columns", "statuses"]

VALID, INVALID = "valid", "invalid"
_TEXT = pa.dictionary(pa.int32(), pa.string())


class InColumns:
    """A status function of a whole Arrow column."""

    def __init__(self, function: Callable[[pa.Array], pa.Array]) -> None:
        self.function = function


Status: TypeAlias = Callable[[bytes | None], bool | str] | InColumns
# as whoever reads them has them: to make a column of objects, and objects of it, costs much
Values: TypeAlias = pa.Array | list[bytes | None]


def in_columns(function: Callable[[pa.Array], pa.Array]) -> InColumns:
    """Give statuses for a whole column at once: faster than a call for each message.

    The function takes an Arrow array of binary values, null for a tombstone, and gives an array of
    booleans or of texts, as long as it is and without nulls. An error ends the application, a
    ValueError too: here it would stand for all the messages.

    >>> import pyarrow.compute as pc
    >>> status = in_columns(lambda values: pc.fill_null(pc.starts_with(values, "{"), False))
    >>> statuses(status, [b"{}", b"no", None]).to_pylist()
    ['valid', 'invalid', 'invalid']
    """
    return InColumns(function)


def statuses(status: Status, values: Values) -> pa.Array:
    """Give the status of each value, as a dictionary-encoded array of texts."""
    if isinstance(status, InColumns):
        given = status.function(
            pa.array(values, pa.binary()) if isinstance(values, list) else values
        )
        if isinstance(given, pa.ChunkedArray):
            given = given.combine_chunks()
        if len(given) != len(values) or given.null_count:
            raise WrongResult(
                f"the status function gave {len(given)} statuses, {given.null_count} of them null, "
                f"for {len(values)} messages (pc.fill_null gives nulls a status)"
            )
    else:
        given = _each(status, values if isinstance(values, list) else values.to_pylist())
    return _named(given)


def _each(status: Callable[[bytes | None], bool | str], values: Sequence[bytes | None]) -> pa.Array:
    try:
        found = list(map(status, values))
    except ValueError:
        found = [_one(status, value) for value in values]
    try:
        # most often all are booleans, and Arrow says so faster than a loop
        return pa.array(found, pa.bool_())
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([_name(one) for one in found], pa.string())


def _one(status: Callable[[bytes | None], bool | str], value: bytes | None) -> bool | str:
    try:
        return status(value)
    except ValueError:
        return False


def _name(given: Any) -> str:
    if isinstance(given, bool):
        return VALID if given else INVALID
    if isinstance(given, str):
        return given
    raise WrongResult(f"the status function gave {given!r}; give True, False or a name")


def _named(given: pa.Array) -> pa.Array:
    if pa.types.is_boolean(given.type):
        if given.null_count:
            raise WrongResult("the status function gave None; give True, False or a name")
        names = pa.array([INVALID, VALID], pa.string())
        return pa.DictionaryArray.from_arrays(given.cast(pa.int32()), names)
    return (
        given if pa.types.is_dictionary(given.type) else given.cast(pa.string()).dictionary_encode()
    )
