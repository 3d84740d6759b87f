"""Payments with a known share of invalid and of late ones, and what they must be counted as."""

import json
from collections import Counter
from dataclasses import dataclass, field
from random import Random

from thulawa.brokers.embedded import Log, ProducerRecord

__all__ = ["Generator", "payment"]

_BAD = (
    b'{"id": 0, "amount": 1, "currency": "EUR"}',
    b'{"id": 7, "amount": "12"}',
    b'{"id": 7, "amount": 12, "currency": "???"}',
    b'{"id": 7, "amou',
    b"",
)


@dataclass(slots=True)
class Generator:
    """Writes payments to a topic; late ones carry a time up to ``latest`` ms before that.

    ``sent`` holds how many were sent, by window and status: what a right count comes to.
    """

    log: Log
    topic: str
    partitions: int
    invalid: float = 0.1
    late: float = 0.05
    latest: int = 5_000
    window: int = 1_000
    random: Random = field(default_factory=lambda: Random(1))
    sent: Counter[tuple[int, str]] = field(default_factory=Counter)
    late_ones: int = 0

    def send(self, count: int, now: int) -> None:
        """Write so many payments as of now."""
        self.log.append({self.topic: [self._payment(now) for _ in range(count)]})

    def _payment(self, now: int) -> ProducerRecord:
        draw = self.random
        bad, late = draw.random() < self.invalid, draw.random() < self.late
        value = payment(draw, valid=not bad)
        time = now - draw.randrange(self.window, self.latest) if late else now
        self.late_ones += late
        self.sent[time // self.window * self.window, "invalid" if bad else "valid"] += 1
        return ProducerRecord(None, value, (), time, draw.randrange(self.partitions))


def payment(draw: Random, *, valid: bool) -> bytes:
    """Make a message."""
    if not valid:
        return draw.choice(_BAD)
    fields = {
        "id": draw.randrange(1, 10**9),
        "amount": draw.randrange(1, 10**6) / 100,
        "currency": draw.choice(("EUR", "LKR", "USD")),
    }
    return json.dumps(fields).encode()
