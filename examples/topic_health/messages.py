"""Payments: what a valid one is."""

from typing import Any

__all__ = ["PAYMENT"]

PAYMENT: dict[str, Any] = {
    "title": "A payment",
    "type": "object",
    "required": ["id", "amount", "currency"],
    "properties": {
        "id": {"type": "integer", "minimum": 1},
        "amount": {"type": "number", "exclusiveMinimum": 0},
        "currency": {"enum": ["EUR", "LKR", "USD"]},
        "note": {"type": "string", "maxLength": 200},
    },
}
