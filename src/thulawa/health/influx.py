"""InfluxDB: line protocol over HTTP.

A cell is a point of the measurement, at the start of its window, with topic and partition as tags
and the statuses as integer fields. A point replaces an earlier one with the same tags and time,
field by field, so writing twice changes nothing. The database sums over partitions:
``SELECT sum("valid") … GROUP BY time(1s)``.
"""

import base64
import http.client
import logging
import re
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from urllib.parse import unquote, urlencode, urlsplit

from thulawa.core.durations import Duration, milliseconds
from thulawa.core.secrets import masked_address
from thulawa.errors import (
    ConfigurationError,
    InfluxUnreachable,
)
from thulawa.health.counts import Count

_OK = range(200, 300)
_TRY_AGAIN = {408, 429, 500, 502, 503, 504}
_TOO_OLD = "points beyond retention policy"
_SHOWN = 300
_NONE = "(none)"
_NO_DATABASE = "; correct the address, or create the database, for instance with create_database()"
_FIRST_BACKOFF, _MAX_BACKOFF = 0.1, 10.0

_log = logging.getLogger("thulawa.counts")


class Influx:
    """Writes totals to InfluxDB 1.x, or to 2.x and 3.x through the same address.

    ``url`` may contain a user and a password; ``headers`` may contain a token (2.x:
    ``Authorization: Token …``). A request has up to ``batch`` points. After a transient failure (no
    connection, no response within ``timeout``, 429, 5xx) it is retried with exponential backoff for
    ``retry_timeout``; then `InfluxUnreachable` is raised. Other failures raise it at once, except
    for points beyond the database's retention: they are logged and dropped.
    """

    def __init__(
        self,
        url: str,
        *,
        database: str,
        measurement: str = "topic-health",
        headers: Mapping[str, str] | None = None,
        batch: int = 5_000,
        timeout: Duration = "5 s",
        retry_timeout: Duration = "5 minutes",
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            shown = masked_address(url)
            raise ConfigurationError(f"{shown!r} is not an address such as http://localhost:8086")
        if not measurement:
            raise ConfigurationError("a measurement needs a name")
        if batch < 1:
            raise ConfigurationError("batch must be at least 1")
        self._parts = parts
        self._where = f"{parts.scheme}://{parts.hostname}:{parts.port or ''}"
        self._root = parts.path.rstrip("/")
        self._database = database
        self._headers = {"Content-Type": "text/plain; charset=utf-8", **(headers or {})}
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(login).decode()}"
        self._measurement = measurement
        self._batch = batch
        self._timeout = milliseconds(timeout, name="timeout") / 1000
        self._retry_timeout = milliseconds(retry_timeout, name="retry_timeout") / 1000
        self._sleep = sleep
        self._connection: http.client.HTTPConnection | None = None

    def __repr__(self) -> str:
        return f"Influx({self._where!r}, measurement={self._measurement!r})"

    def put(self, counts: Sequence[Count]) -> None:
        """Write totals as points."""
        points = lines(counts, self._measurement)
        path = f"{self._root}/write?{urlencode({'db': self._database, 'precision': 'ms'})}"
        for at in range(0, len(points), self._batch):
            self._post(
                path,
                "\n".join(points[at : at + self._batch]).encode(),
                hint="; the counts are in the topic, and are sent again at the next start",
            )

    def create_database(self) -> None:
        """Create the database unless it exists (InfluxDB 1.x)."""
        name = self._database.replace("\\", "\\\\").replace('"', '\\"')
        query = urlencode({"q": f'CREATE DATABASE "{name}"'})
        self._post(f"{self._root}/query?{query}", b"", hint="")

    def close(self) -> None:
        """Close the connection; the next `put` opens it again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _post(self, path: str, body: bytes, hint: str) -> None:
        """Send a request until it succeeds; ``hint`` ends the error after the last retry."""
        deadline = time.monotonic() + self._retry_timeout
        backoff = _FIRST_BACKOFF
        while True:
            try:
                status, answer = self._request(path, body)
            except (OSError, http.client.HTTPException) as error:
                self.close()  # a failed connection cannot be used again
                status, answer = 0, f"{type(error).__name__}: {error}"
            if status in _OK:
                return
            if _TOO_OLD in answer:
                # the other points were written; retrying these would fail again
                _log.warning("%s has dropped points: %s", self._where, answer)
                return
            if status and status not in _TRY_AGAIN:
                advice = _NO_DATABASE if hint and status == HTTPStatus.NOT_FOUND else ""
                raise InfluxUnreachable(
                    f"{self._where} rejected the request ({status}): {answer}{advice}"
                )
            if time.monotonic() + backoff > deadline:
                raise InfluxUnreachable(
                    f"{self._where} accepted no points for {self._retry_timeout:.0f} s: "
                    f"{answer or status}{hint}"
                )
            if backoff == _FIRST_BACKOFF:
                _log.warning(
                    "%s does not accept points (%s); retrying for up to %.0f s",
                    self._where,
                    answer or status,
                    self._retry_timeout,
                )
            self._sleep(backoff)
            backoff = min(2 * backoff, _MAX_BACKOFF)

    def _request(self, path: str, body: bytes) -> tuple[int, str]:
        if self._connection is None:
            secure = self._parts.scheme == "https"
            kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
            host, port = self._parts.hostname or "", self._parts.port
            self._connection = kind(host, port, timeout=self._timeout)
        self._connection.request("POST", path, body, self._headers)
        response = self._connection.getresponse()
        answer = response.read().decode(errors="replace")
        return response.status, answer[:_SHOWN].strip()


def lines(counts: Sequence[Count], measurement: str) -> list[str]:
    """Return totals as points in line protocol, in milliseconds, one for each window.

    >>> from thulawa.health import Cell
    >>> cell = Cell("tx", 0, 1501273548000, "valid")
    >>> lines([Count(cell, 4, 5), Count(cell._replace(status="invalid"), 1, 4)], "topic-health")
    ['topic-health,topic=tx,partition=0 valid=4i,invalid=1i 1501273548000']
    """
    points: dict[tuple[str, int | None, int], dict[str, int]] = defaultdict(dict)
    for (topic, partition, window, status), value, _ in counts:
        if value is not None:
            points[topic, partition, window][status] = value
    return [
        f"{_escaped(measurement, ', ')},topic={_escaped(topic)}"
        f"{'' if partition is None else f',partition={partition}'} "
        f"{','.join(f'{_escaped(name)}={value}i' for name, value in fields.items())} {window}"
        for (topic, partition, window), fields in points.items()
    ]


def _escaped(text: str, signs: str = ",= ") -> str:
    """Escape a name; a backslash at its end, or before a sign, would escape what follows."""
    text = re.sub(rf"\\(?=[{signs}]|$)", r"\\_", text or _NONE)
    for sign in signs:
        text = text.replace(sign, f"\\{sign}")
    return text.replace("\n", "\\n")
