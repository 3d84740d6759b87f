"""Backpressure: how much is held against the bounds, and whether intake is open.

*Held* is every record that arrived, is not finished and is not parked. Parked records (waiting
for a retry) have an allowance of their own and only what exceeds it counts against the bounds. So
a few failing keys never stop intake, many do, and the total is bounded: held + parked never
exceeds ``Bounds.records + Bounds.parked``. Intake closes at a bound and opens again at
``resume_at`` of it: hysteresis, so that it does not open for every single record.
"""

from dataclasses import dataclass, field

from thulawa.engine.options import Bounds


@dataclass(slots=True)
class Backpressure:
    """Counts held and parked records, bytes and keys; opens and closes intake."""

    bounds: Bounds
    allowed_bytes: int = field(init=False)  # of parked records, not counted against the bounds
    records: int = 0  # held
    bytes: int = 0
    parked: int = 0
    parked_bytes: int = 0
    parked_keys: int = 0
    open: bool = True

    def __post_init__(self) -> None:
        bounds = self.bounds
        self.allowed_bytes = bounds.bytes * min(bounds.parked, bounds.records) // bounds.records

    def park(self, records: int, size: int, keys: int) -> None:
        """Count records as parked, no longer as held; negative numbers undo it."""
        self.records -= records
        self.bytes -= size
        self.parked += records
        self.parked_bytes += size
        self.parked_keys += keys

    def excess(self) -> int:
        """Return the number of parked records beyond their allowance."""
        return max(0, self.parked - self.bounds.parked)

    def room(self, keys: int) -> tuple[int, int]:
        """Return how many records and bytes may arrive now; zeros while intake is closed.

        ``keys`` is the number of keys held, 0 where the order contract does not use keys.
        """
        bounds = self.bounds
        records = self.records + self.excess()
        size = self.bytes + max(0, self.parked_bytes - self.allowed_bytes)
        keys = max(0, keys - min(self.parked_keys, bounds.parked))
        if not self.open:
            low = bounds.resume_at
            self.open = (
                records <= bounds.records * low
                and size <= bounds.bytes * low
                and keys <= bounds.keys * low
            )
        elif records >= bounds.records or size >= bounds.bytes or keys >= bounds.keys:
            self.open = False
        if not self.open:
            return 0, 0
        return min(bounds.records - records, bounds.keys - keys), bounds.bytes - size
