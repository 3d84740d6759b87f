"""Adaptive batch size: additive increase, multiplicative decrease.

The size grows by one after every full batch that met the latency target and shrinks by a tenth
after one that missed it. Without a target the size is fixed.
"""

from thulawa.engine.options import Batch


class BatchSize:
    """The current size of a batch, between 1 and ``Batch.size``."""

    __slots__ = ("_size", "_target", "_top", "now")

    def __init__(self, options: Batch) -> None:
        self._top = options.size
        self._target = options.target
        self._size = float(options.size if options.target is None else min(10, options.size))
        self.now = int(self._size)

    def observe(self, records: int, latency: float) -> None:
        """Adapt the size to the latency of a batch that succeeded."""
        if self._target is None:
            return
        if latency > self._target:
            self._size = max(1.0, min(self._size, records) * 0.9)
        elif records >= self.now:
            self._size = min(float(self._top), self._size + 1)
        self.now = int(self._size)
