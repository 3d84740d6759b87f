"""Convert records to lines of text and back.

As JSON, keys, values and header values are text where they are UTF-8, else
``{"base64": "…"}``: what `as_json` writes, `parse` reads back.
"""

import json
from base64 import b64decode, b64encode
from typing import Any

from thulawa.cli.console import json_line
from thulawa.core.types import ConsumerRecord, ProducerRecord

_KNOWN = frozenset({"key", "value", "headers", "timestamp", "topic", "partition", "offset"})


def as_line(record: ConsumerRecord) -> str:
    """Return a readable line: partition and offset, key and value."""
    return f"{record.partition}:{record.offset}  {as_text(record.key)}  {as_text(record.value)}"


def as_json(record: ConsumerRecord) -> str:
    """Return all fields of a record as JSON."""
    headers = [[name, from_bytes(value)] for name, value in record.headers]
    fields = {"key": from_bytes(record.key), "value": from_bytes(record.value), "headers": headers}
    return json_line(record._asdict() | fields)


def visible(text: str) -> str:
    r"""Return text on one line, with terminal control characters escaped.

    >>> visible("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


def as_text(data: bytes | None) -> str:
    """Return bytes as readable text on one line."""
    return "-" if data is None else visible(data.decode(errors="backslashreplace"))


def from_bytes(data: bytes | None) -> Any:
    """Return bytes for JSON: text if they are UTF-8, else base64."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode()}


def parse(line: str, separator: str | None) -> ProducerRecord:
    """Return a record from ``key:value``, or from JSON without a separator.

    Of a JSON object, key, value, headers and timestamp are used; the key decides the partition.
    Raise ValueError with the reason.
    """
    if separator is not None:
        key, found, value = line.partition(separator)
        return ProducerRecord(_raw(key), _raw(value)) if found else ProducerRecord(None, _raw(line))
    fields = json.loads(line)
    if not isinstance(fields, dict) or not fields.keys() <= _KNOWN:
        raise ValueError(f"not an object of {', '.join(sorted(_KNOWN))}")
    timestamp = fields.get("timestamp")
    if timestamp is not None and not (type(timestamp) is int and 0 <= timestamp < 2**63):
        raise ValueError(f"the timestamp {timestamp!r:.40} is not a whole number in [0, 2**63)")
    headers = _headers(fields.get("headers"))
    return ProducerRecord(
        _to_bytes(fields.get("key")), _to_bytes(fields.get("value")), headers, timestamp
    )


def _headers(pairs: Any) -> tuple[tuple[str, bytes | None], ...]:
    if pairs is None:
        return ()
    if not isinstance(pairs, list) or not all(map(_is_header, pairs)):
        raise ValueError(f'headers are pairs, [["agent", "curl"]], not {pairs!r:.40}')
    return tuple((name, _to_bytes(value)) for name, value in pairs)


def _is_header(pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)  # noqa: PLR2004 a pair


def _raw(text: str) -> bytes:
    """Return the bytes of a line as they were read."""
    return text.encode(errors="surrogateescape")


def _to_bytes(field: Any) -> bytes | None:
    if field is None or isinstance(field, str):
        return None if field is None else field.encode()
    if isinstance(field, dict) and field.keys() == {"base64"} and isinstance(field["base64"], str):
        return b64decode(field["base64"], validate=True)
    raise ValueError(f'{field!r:.40} is neither text, null nor {{"base64": "…"}}')
