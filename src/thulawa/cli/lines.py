"""Records as lines of text, in both directions.

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
    """Write a record for people: where it stands, its key and its value."""
    return f"{record.partition}:{record.offset}  {shown(record.key)}  {shown(record.value)}"


def as_json(record: ConsumerRecord) -> str:
    """Write all of a record."""
    told = record._asdict() | {
        "key": written(record.key),
        "value": written(record.value),
        "headers": [[name, written(value)] for name, value in record.headers],
    }
    return json_line(told)


def json_line(told: Any) -> str:
    r"""Write JSON that a terminal shows as it is: what is not printable is escaped.

    >>> json_line({"key": "é\x9b2J\u202e"})
    '{"key": "é\\u009b2J\\u202e"}'
    """
    text = json.dumps(told, ensure_ascii=False)
    if text.isprintable():
        return text
    # what is not printable stands inside of strings, where JSON has escapes for it
    return "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in text)


def visible(text: str) -> str:
    r"""Write text for people, on one line: what would move or colour a terminal is escaped.

    >>> visible("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


def parse(line: str, separator: str | None) -> dict[str, Any]:
    """Read what a producer sends: ``key:value``, or JSON where no separator is given.

    Of a JSON object the key, the value, the headers and the timestamp are taken; where it goes
    is the key's affair. Raises ValueError with the reason.
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
    """Give the bytes that a line was made of, whatever they were."""
    return text.encode(errors="surrogateescape")


def shown(data: bytes | None) -> str:
    """Write bytes for people, on one line."""
    if data is None:
        return "-"
    return visible(data.decode(errors="backslashreplace"))


def written(data: bytes | None) -> Any:
    """Write bytes for JSON: text where they are UTF-8."""
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
