"""Messages are validated by JSON schemas."""

import pickle
from typing import Any

import pytest

from thulawa.errors import ConfigurationError
from thulawa.health import json_schema

PAYMENT = {
    "title": "A payment",
    "type": "object",
    "required": ["id", "amount"],
    "properties": {
        "id": {"type": "integer", "minimum": 1},
        "amount": {"type": "number", "exclusiveMinimum": 0},
        "currency": {"enum": ["EUR", "LKR"]},
        "note": {"type": ["string", "null"], "maxLength": 5},
        "lines": {"type": "array", "minItems": 1, "items": {"required": ["sku"]}},
    },
}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (b'{"id": 1, "amount": 2}', True),
        (b'{"id": 1, "amount": 0.5, "more": [1, {}]}', True),
        (b'{"id": 1.0, "amount": 0.5}', False),
        (b'{"id": 1.5, "amount": 0.5}', False),
        (b'{"id": 0, "amount": 1}', False),
        (b'{"id": true, "amount": 1}', False),
        (b'{"id": "1", "amount": 1}', False),
        (b'{"id": 1, "amount": 0}', False),
        (b'{"id": 1}', False),
        (b'{"id": 1, "amount": 1, "currency": "LKR"}', True),
        (b'{"id": 1, "amount": 1, "currency": "XXX"}', False),
        (b'{"id": 1, "amount": 1, "note": null}', True),
        (b'{"id": 1, "amount": 1, "note": "longer"}', False),
        (b'{"id": 1, "amount": 1, "lines": [{"sku": 4}]}', True),
        (b'{"id": 1, "amount": 1, "lines": []}', False),
        (b'{"id": 1, "amount": 1, "lines": [{}]}', False),
        (b'{"id": 1, "amount": NaN}', False),
        (b"[]", False),
        (b"", False),
        (b"\xff\xfe", False),
        (b'{"id": 1, "amount": 1, "other": "caf\xc3\xa9"}', True),
        (b'{"id": 1, "amount": 1, "other": "caf\xe9"}', False),
        (b'{"id": 1, "amount": 1, "caf\xe9": 1}', False),
        (None, False),
    ],
)
def test_messages_are_validated(message: bytes | None, *, expected: bool) -> None:
    assert json_schema(PAYMENT)(message) is expected


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "object", "additionalProperties": False}, b"{}", b'{"a": 1}'),
        (
            {"type": "object", "additionalProperties": {"type": "integer"}},
            b'{"a": 1}',
            b'{"a": ""}',
        ),
        ({"properties": {"a": {}}, "additionalProperties": False}, b'{"a": []}', b'{"b": 1}'),
        ({"type": "string", "pattern": "^[a-z]+$"}, b'"abc"', b'"ABC"'),
        ({"type": "integer", "multipleOf": 5, "maximum": 20}, b"15", b"25"),
        ({"const": 3}, b"3", b"4"),
        ({"type": "string", "enum": ["a", 1, None]}, b'"a"', b"1"),
        ({"type": ["number", "null"], "enum": ["a", 1, None]}, b"1", b'"a"'),
        ({"type": ["number", "null"], "enum": ["a", 1, None]}, b"null", b'"a"'),
        ({"type": "boolean"}, b"true", b"1"),
        ({"type": "array", "items": {"type": "integer"}, "maxItems": 2}, b"[1, 2]", b"[1, 2, 3]"),
    ],
    ids=lambda given: str(given)[:40],
)
def test_each_keyword_is_checked(schema: dict[str, Any], good: bytes, bad: bytes) -> None:
    check = json_schema(schema)
    assert (check(good), check(bad)) == (True, False)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "object", "oneOf": []}, "oneOf"),
        ({"type": "text"}, "text"),
        ({"minLength": 3}, "type"),
        ({"enum": [1.5]}, "whole numbers"),
        ({"type": "string", "const": 3}, "no choice"),
        ({"type": "text", "enum": ["a"]}, "text"),
        ({"properties": {"a": {"type": "string", "minimum": 3}}}, r"schema\.a.*minimum"),
        ({"type": "string", "minLength": -1}, "schema"),
        ({"properties": {"a": 7}}, "not a schema"),
        ({"$ref": "#/definitions/a"}, "keyword '\\$ref'"),
        ({"properties": {"a": {"typ": "string"}}}, r"schema\.a.*'typ'"),
        ('{"type": "object"}', "not a schema"),
    ],
    ids=lambda given: str(given)[:40],
)
def test_an_unsupported_rule_is_rejected(schema: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        json_schema(schema)


def test_a_check_can_be_pickled() -> None:
    check = pickle.loads(pickle.dumps(json_schema(PAYMENT)))  # noqa: S301 our own
    assert check(b'{"id": 1, "amount": 2}')


def test_a_message_nested_too_deeply_is_invalid() -> None:
    deep = b'{"id": 1, "amount": 2, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert json_schema(PAYMENT)(deep) is False
