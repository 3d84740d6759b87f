"""What is held against the bounds, and whether intake is open.

*Held* is every record taken in, not finished and not parked. Parked records have an allowance
of their own: only what exceeds it takes room from fresh ones. So a few failing keys never stop
intake, a flood of them does, and the sum of both is bounded: held + parked never exceeds
``records + parked`` of the bounds. Intake closes at a bound and opens again at the low mark,
so that it does not flutter.
"""

from thulawa.engine.options import Bounds

__all__ = ["Ledger"]


class Ledger:
    """Counts records, bytes and keys; says how many more may come."""

    __slots__ = (
        "allowed_bytes",
        "bounds",
        "bytes",
        "open",
        "parked",
        "parked_bytes",
        "parked_keys",
        "records",
    )

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.allowed_bytes = bounds.bytes * min(bounds.parked, bounds.records) // bounds.records
        self.records = 0
        self.bytes = 0
        self.parked = 0
        self.parked_bytes = 0
        self.parked_keys = 0
        self.open = True

    def park(self, records: int, size: int) -> None:
        """Move the records of one key from held to parked."""
        self.records -= records
        self.bytes -= size
        self.parked += records
        self.parked_bytes += size
        self.parked_keys += 1

    def unpark(self, records: int, size: int) -> None:
        """Move them back."""
        self.records += records
        self.bytes += size
        self.parked -= records
        self.parked_bytes -= size
        self.parked_keys -= 1

    def excess(self) -> int:
        """Count the parked records beyond their allowance."""
        return max(0, self.parked - self.bounds.parked)

    def room(self, keys: int) -> tuple[int, int]:
        """Give how many records and bytes may be taken in now; zero when intake is closed.

        ``keys`` are those tracked, 0 where the order contract does not track any.
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
