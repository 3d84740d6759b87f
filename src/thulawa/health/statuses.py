"""The status under which a message is counted.

A status function receives the message's bytes (None for a tombstone) and returns True (``valid``),
False (``invalid``) or another name. A ValueError counts as ``invalid``: parsers raise it for bad
input. Any other error ends the round, since it is a bug of the function that counting would hide.
The function must be deterministic: instances that count the same message must agree.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from thulawa.errors import WrongResult

VALID, INVALID = "valid", "invalid"
_TEXT = pa.dictionary(pa.int32(), pa.string())


class InColumns:
    """A status function of a whole Arrow column."""

    def __init__(self, function: Callable[[pa.Array], pa.Array]) -> None:
        self.function = function


Status: TypeAlias = Callable[[bytes | None], bool | str] | InColumns
# in the form in which they were read: converting between column and list is expensive
Values: TypeAlias = pa.Array | list[bytes | None]


def in_columns(function: Callable[[pa.Array], pa.Array]) -> InColumns:
    """Create a status function of a whole column, which is faster than one call per message.

    The function receives an Arrow array of binary values, null for a tombstone, and returns an
    array of booleans or strings of the same length, without nulls. Any error ends the application,
    even a ValueError, which would concern all the messages.

    >>> import pyarrow.compute as pc
    >>> status = in_columns(lambda values: pc.fill_null(pc.starts_with(values, "{"), False))
    >>> statuses(status, [b"{}", b"no", None]).to_pylist()
    ['valid', 'invalid', 'invalid']
    """
    return InColumns(function)


def statuses(status: Status, values: Values) -> pa.Array:
    """Return the status of each value, as a dictionary-encoded array of strings."""
    if isinstance(status, InColumns):
        column = pa.array(values, pa.binary()) if isinstance(values, list) else values
        found = status.function(column)
        if isinstance(found, pa.ChunkedArray):
            found = found.combine_chunks()
        if len(found) != len(values) or found.null_count:
            raise WrongResult(
                f"the status function returned {len(found)} statuses, {found.null_count} of them "
                f"null, for {len(values)} messages (pc.fill_null replaces nulls)"
            )
    else:
        found = _each(status, values if isinstance(values, list) else values.to_pylist())
    return _encoded(found)


def _each(status: Callable[[bytes | None], bool | str], values: Sequence[bytes | None]) -> pa.Array:
    try:
        found = list(map(status, values))
    except ValueError:
        found = [_one(status, value) for value in values]
    try:
        # most often all are booleans, and Arrow finds out faster than a loop
        return pa.array(found, pa.bool_())
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([_name(one) for one in found], pa.string())


def _one(status: Callable[[bytes | None], bool | str], value: bytes | None) -> bool | str:
    try:
        return status(value)
    except ValueError:
        return False


def _name(status: Any) -> str:
    if isinstance(status, bool):
        return VALID if status else INVALID
    if isinstance(status, str):
        return status
    raise WrongResult(f"the status function returned {status!r}, not True, False or a name")


def _encoded(found: pa.Array) -> pa.Array:
    """Return statuses as names, dictionary-encoded."""
    if pa.types.is_dictionary(found.type):
        return found
    if not pa.types.is_boolean(found.type):
        return found.cast(pa.string()).dictionary_encode()
    if found.null_count:
        raise WrongResult("the status function returned None, not True, False or a name")
    names = pa.array([INVALID, VALID], pa.string())
    return pa.DictionaryArray.from_arrays(found.cast(pa.int32()), names)
