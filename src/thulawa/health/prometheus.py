"""Prometheus: what has been counted, on an endpoint of its own.

Prometheus asks when it likes and stamps what it gets with its own time, so it is shown no windows
but what moves with them: messages by status (a counter of what this instance counts, which begins
anew with it, as counters may), and the offset and the window up to which a partition is counted.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeAlias

from thulawa.core.durations import Duration, milliseconds
from thulawa.core.errors import ConfigurationError
from thulawa.health.model import Cell, Count

__all__ = ["Prometheus"]

_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PRUNE_AT_LEAST = 10_000

Labels: TypeAlias = tuple[tuple[str, str], ...]


class Prometheus:
    """Serves ``/metrics`` at a port; 0 takes a free one, and ``port`` says which.

    ``name`` begins the names of the metrics: ``…_messages_total`` with topic, partition and status,
    ``…_offset`` and ``…_window_seconds`` with topic and partition. Late messages are told from new
    ones for as long as ``keep``: as long as windows live.
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
        self._seen: dict[Cell, int] = {}
        self._prune_at = _PRUNE_AT_LEAST
        self._messages: dict[Labels, int] = {}
        self._offsets: dict[Labels, int] = {}
        self._windows: dict[Labels, float] = {}
        try:
            self._server = ThreadingHTTPServer((host, port), _handler(self.text))
        except OSError as error:
            raise ConfigurationError(f"cannot listen at {host}:{port}: {error}") from error
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="prometheus", daemon=True).start()

    @property
    def port(self) -> int:
        """The port it listens at."""
        return int(self._server.server_address[1])

    def seed(self, counts: Sequence[Count]) -> None:
        """Take totals that others have come to: what is put counts from there."""
        self._take_all(counts, anew=True)

    def put(self, counts: Sequence[Count]) -> None:
        """Take totals."""
        self._take_all(counts, anew=False)

    def text(self) -> str:
        """Give what is served, in Prometheus' text format."""
        with self._lock:
            return "".join(
                (
                    self._metric("messages_total", "counter", "Messages counted.", self._messages),
                    self._metric("offset", "gauge", "Next offset to be counted.", self._offsets),
                    self._metric("window_seconds", "gauge", "Newest window.", self._windows),
                )
            )

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()

    def _take_all(self, counts: Sequence[Count], *, anew: bool) -> None:
        with self._lock:
            for cell, value, offset in counts:
                if value is not None:
                    before = value if anew else self._seen.get(cell, 0)
                    self._take(cell, value, offset, before)
            if len(self._seen) > self._prune_at:
                self._prune()

    def _take(self, cell: Cell, value: int, offset: int, before: int) -> None:
        place: Labels = (("topic", cell.topic),)
        if cell.partition is not None:
            place = (*place, ("partition", str(cell.partition)))
        labels = (*place, ("status", cell.status))
        # put again, a total adds nothing
        more = max(0, value - before)
        self._messages[labels] = self._messages.get(labels, 0) + more
        self._seen[cell] = value
        if cell.partition is not None:  # a sum has no offset
            self._offsets[place] = max(offset, self._offsets.get(place, 0))
        self._windows[place] = max(cell.window / 1000, self._windows.get(place, 0))

    def _prune(self) -> None:
        newest = max(cell.window for cell in self._seen)
        self._seen = {
            cell: value for cell, value in self._seen.items() if newest - cell.window <= self._keep
        }
        self._prune_at = max(_PRUNE_AT_LEAST, 2 * len(self._seen))

    def _metric(self, name: str, kind: str, about: str, values: Mapping[Labels, float]) -> str:
        whole = f"{self._name}_{name}"
        rows = "".join(
            f"{whole}{{{','.join(map(_label, labels))}}} {value}\n"
            for labels, value in sorted(values.items())
        )
        return f"# HELP {whole} {about}\n# TYPE {whole} {kind}\n{rows}"


def _label(label: tuple[str, str]) -> str:
    name, text = label
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{name}="{escaped}"'


def _handler(text: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path.partition("?")[0] in ("/metrics", "/")
            body = text().encode() if found else b"see /metrics\n"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", _TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Say nothing about each request."""

    return Metrics
