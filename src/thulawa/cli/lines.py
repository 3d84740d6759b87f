"""Convert records to lines of text and back.

As JSON, keys, values and header values are text where they are UTF-8, else
``{"base64": "…"}``: what `as_json` writes, `parse` reads back.
"""

import json
from base64 import b64decode, b64encode
from typing import Any

from thulawa.brokers.embedded import ConsumerRecord

__all__ = ["as_json", "as_line", "json_line", "parse", "shown", "visible", "written"]

_KNOWN = frozenset({"key", "value", "headers", "timestamp", "topic", "partition", "offset"})


def as_line(record: ConsumerRecord) -> str:
    """Return a readable line: partition and offset, key and value."""
    return f"{record.partition}:{record.offset}  {shown(record.key)}  {shown(record.value)}"


def as_json(record: ConsumerRecord) -> str:
    """Return all fields of a record as JSON."""
    told = record._asdict() | {
        "key": written(record.key),
        "value": written(record.value),
        "headers": [[name, written(value)] for name, value in record.headers],
    }
    return json_line(told)


def json_line(told: Any) -> str:
    r"""Return JSON in which characters that are not printable are escaped.

    >>> json_line({"key": "é\x9b2J\u202e"})
    '{"key": "é\\u009b2J\\u202e"}'
    """
    text = json.dumps(told, ensure_ascii=False)
    if text.isprintable():
        return text
    # such characters are only in strings, where JSON has escapes for them
    return "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in text)


def visible(text: str) -> str:
    r"""Return text on one line, with terminal control characters escaped.

    >>> visible("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


def parse(line: str, separator: str | None) -> dict[str, Any]:
    """Return the fields of a record from ``key:value``, or from JSON without a separator.

    Of a JSON object, key, value, headers and timestamp are used; the key decides the partition.
    Raises ValueError with the reason.
    """
    if separator is not None:
        before, found, after = line.partition(separator)
        return {"key": _raw(before), "value": _raw(after)} if found else {"value": _raw(line)}
    told = json.loads(line)
    if not isinstance(told, dict) or not told.keys() <= _KNOWN:
        raise ValueError(f"not an object of {', '.join(sorted(_KNOWN))}")
    return {
        "key": _read(told.get("key")),
        "value": _read(told.get("value")),
        "headers": _headers(told.get("headers")),
        "timestamp": told.get("timestamp"),
    }


def _headers(told: Any) -> list[tuple[Any, bytes | None]]:
    if told is None:
        return []
    pairs = isinstance(told, list) and all(isinstance(p, list) and len(p) == 2 for p in told)  # noqa: PLR2004 a pair
    if not pairs:
        raise ValueError(f'headers are pairs, [["agent", "curl"]], not {told!r:.40}')
    return [(name, _read(value)) for name, value in told]


def _raw(text: str) -> bytes:
    """Return the bytes of a line as they were read."""
    return text.encode(errors="surrogateescape")


def shown(data: bytes | None) -> str:
    """Return bytes as readable text on one line."""
    if data is None:
        return "-"
    return visible(data.decode(errors="backslashreplace"))


def written(data: bytes | None) -> Any:
    """Return bytes for JSON: text if they are UTF-8, else base64."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode()}


def _read(told: Any) -> bytes | None:
    if told is None or isinstance(told, str):
        return None if told is None else told.encode()
    if isinstance(told, dict) and told.keys() == {"base64"} and isinstance(told["base64"], str):
        return b64decode(told["base64"], validate=True)
    raise ValueError(f'{told!r:.40} is neither text, null nor {{"base64": "…"}}')
