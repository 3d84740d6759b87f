"""JSON in its shortest form; duplicate keys, NaN and nesting beyond 500 levels are errors.

msgspec decodes. It keeps the last of two equal keys silently, so its result is encoded again, and
the colons are counted: a member that was dropped had one at least. Where the counts differ, and
where msgspec raises, the decoder of the standard library decides; it is slower (docs/adr/0068).

The standard library encodes: msgspec writes other digits for some floats, which would change the
bytes of keys, and accepts NaN, sets and bytes.
"""

import json
import json.encoder
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

_MAX_DEPTH = 500
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_CONTAINERS = (dict, list)
_BRACKETS = re.compile(rb"[\[\]{}]")

_options = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


_encode_text: Callable[[str], str] = json.encoder.encode_basestring


def _make_encoder() -> Callable[[Any], str]:
    """Return the function that `JSONEncoder.encode` makes anew for every value."""
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # not CPython
        return _options.encode
    encode = make(None, _options.default, _encode_text, None, ":", ",", False, False, False)  # noqa: FBT003
    return lambda value: "".join(encode(value, 0))


_encode = _make_encoder()


def dump_json(value: Any) -> bytes:
    """Return the JSON of a value; raise `ValueError` or `TypeError` if it has none."""
    if type(value) is int:  # counts and sums: a tenth of the encoder's time
        return b"%d" % value
    if type(value) is str:
        return _encode_text(value).encode()
    data = _encode(value).encode()
    _check_depth(data)  # a value that could be written and never read again
    return data


def dump_all_json(values: Sequence[Any]) -> list[bytes]:
    """Return the JSON of each value."""
    if set(map(type, values)) == {int}:  # Python writes them as JSON does
        return str(list(values))[1:-1].encode().split(b", ")
    return list(map(dump_json, values))


def load_json(data: bytes) -> Any:
    """Return the value of JSON; raise `ValueError` or `RecursionError` if it is not strict JSON."""
    if not isinstance(data, bytes):
        raise TypeError  # msgspec would accept a str
    _check_depth(data)
    try:
        value = _decode(data)
    except (msgspec.MsgspecError, ValueError):
        return _strict_decode(data)
    if type(value) in _CONTAINERS and b"{" in data and not _has_unique_keys(data, value):
        return _strict_decode(data)
    return value


def load_all_json(data: Sequence[bytes]) -> list[Any]:
    """Return the value of each piece of JSON."""
    joined = b",".join(data)
    # digits alone: so each of them is a number for itself, or there is an error, or one too few
    if data and not joined.translate(None, b"0123456789,"):
        try:
            numbers: list[Any] = _decode(b"[%b]" % joined)
        except msgspec.MsgspecError:
            numbers = []
        if len(numbers) == len(data):
            return numbers
    return list(map(load_json, data))


_decode = msgspec.json.Decoder().decode
_encode_lenient = msgspec.json.Encoder().encode


def _has_unique_keys(data: bytes, value: Any) -> bool:
    """Return whether no member was dropped; False if in doubt."""
    if b"\\" in data and (b"\\u003a" in data or b"\\u003A" in data):
        return False  # a colon, escaped
    return data.count(b":") == _encode_lenient(value).count(b":")


def _check_depth(data: bytes) -> None:
    """Raise `ValueError` where brackets are nested too deeply, those in strings aside.

    The recursion limit would stop encoders and decoders too, but where it was raised the stack of
    the process is at stake.
    """
    if len(data) <= _MAX_DEPTH or data.count(b"[") + data.count(b"{") <= _MAX_DEPTH:
        return
    depth = 0
    for bracket in _BRACKETS.findall(_STRINGS.sub(b"", data)):
        depth += 1 if bracket in b"[{" else -1
        if depth > _MAX_DEPTH:
            raise ValueError("nested too deeply")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("duplicate key")
    return result


def _reject_constant(constant: str) -> Any:
    raise ValueError(constant)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("number too large")
    return number


_strict = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_reject_constant, parse_float=_finite
)


def _strict_decode(data: bytes) -> Any:
    return _strict.decode(data.decode())
