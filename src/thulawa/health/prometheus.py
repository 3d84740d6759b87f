"""Prometheus: counts on an HTTP endpoint, in the format of prometheus-client.

Prometheus scrapes at times of its own and stamps samples with them, so it is shown no windows:
messages by status (a counter of what this instance has counted, which restarts with it), and per
partition the offset and the window up to which messages are counted.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from thulawa.core.durations import Duration, milliseconds
from thulawa.errors import ConfigurationError
from thulawa.health.counts import Cell, Count

_PRUNE_AT_LEAST = 10_000

Labels: TypeAlias = tuple[tuple[str, str], ...]


class Prometheus(Collector):
    """A sink that serves ``/metrics``; port 0 chooses a free port, which ``port`` returns.

    ``name`` begins the names of the metrics: ``…_messages_total`` with topic, partition and status,
    ``…_offset`` and ``…_window_seconds`` with topic and partition. Totals are remembered for
    ``keep``, the retention of windows, so that a total that is sent again adds nothing.
    """

    def __init__(
        self,
        port: int = 9464,
        *,
        host: str = "127.0.0.1",
        name: str = "topic_health",
        keep: Duration = "1 day",
    ) -> None:
        self._name = name
        self._keep = milliseconds(keep, name="keep")
        self._lock = threading.Lock()
        self._totals: dict[Cell, int] = {}
        self._prune_at = _PRUNE_AT_LEAST
        self._messages: dict[Labels, int] = {}
        self._offsets: dict[Labels, int] = {}
        self._windows: dict[Labels, float] = {}
        self._registry = CollectorRegistry()
        self._registry.register(self)
        try:
            self._server, self._thread = start_http_server(port, host, self._registry)
        except OSError as error:
            raise ConfigurationError(f"cannot listen at {host}:{port}: {error}") from error

    @property
    def port(self) -> int:
        """Return the port of the endpoint."""
        return self._server.server_port

    def seed(self, counts: Sequence[Count]) -> None:
        """Accept totals that other instances have counted; later totals count from there."""
        self._update(counts, seed=True)

    def put(self, counts: Sequence[Count]) -> None:
        """Accept totals."""
        self._update(counts, seed=False)

    def text(self) -> str:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self._registry).decode()

    def close(self) -> None:
        """Close the endpoint."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, for prometheus-client."""
        messages = CounterMetricFamily(f"{self._name}_messages", "Messages counted.")
        offsets = GaugeMetricFamily(f"{self._name}_offset", "Next offset to be counted.")
        windows = GaugeMetricFamily(f"{self._name}_window_seconds", "Newest window.")
        samples: list[tuple[Metric, str, Mapping[Labels, float]]] = [
            (messages, f"{messages.name}_total", self._messages),
            (offsets, offsets.name, self._offsets),
            (windows, windows.name, self._windows),
        ]
        with self._lock:
            for metric, name, values in samples:
                for labels, value in sorted(values.items()):
                    metric.add_sample(name, dict(labels), value)
        yield from (messages, offsets, windows)

    def _update(self, counts: Sequence[Count], *, seed: bool) -> None:
        """Add the increments of totals; with ``seed``, only store the totals."""
        with self._lock:
            for cell, total, offset in counts:
                if total is not None:
                    before = total if seed else self._totals.get(cell, 0)
                    self._add(cell, max(0, total - before), offset)
                    self._totals[cell] = total
            if len(self._totals) > self._prune_at:
                self._prune()

    def _add(self, cell: Cell, growth: int, offset: int) -> None:
        source: Labels = (("topic", cell.topic),)
        if cell.partition is not None:  # a sum over partitions has no offset
            source = (*source, ("partition", str(cell.partition)))
            self._offsets[source] = max(offset, self._offsets.get(source, 0))
        labels = (*source, ("status", cell.status))
        self._messages[labels] = self._messages.get(labels, 0) + growth
        self._windows[source] = max(cell.window / 1000, self._windows.get(source, 0))

    def _prune(self) -> None:
        newest = max(cell.window for cell in self._totals)
        self._totals = {
            cell: total
            for cell, total in self._totals.items()
            if newest - cell.window <= self._keep
        }
        self._prune_at = max(_PRUNE_AT_LEAST, 2 * len(self._totals))
