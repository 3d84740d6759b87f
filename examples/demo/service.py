"""A GeoIP lookup service on loopback, slow on purpose, and clients for it.

The service is a process of its own, so that its work does not count as ours. It speaks just
enough HTTP/1.1, with connections kept alive:

``GET /<milliseconds>/<caller>/<ip>`` is answered with a country after so many milliseconds.
``GET /calls`` tells of each caller how many calls are open, and how many were at most since the
last time it was asked.

Spark's workers load this module: it needs the standard library alone.
"""

import asyncio
import http.client
import json
import multiprocessing
import signal
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["AsyncLookups", "Lookups", "async_lookups", "lookup_service"]

_HOST = "127.0.0.1"
_COUNTRIES = ("BR", "DE", "IN", "JP", "KE", "LK", "NO", "US")
_SECONDS_TO_START = 30


@contextmanager
def lookup_service() -> Iterator[Callable[[], int]]:
    """Run the service while the context lasts; give what waits for it and tells its port."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), name="thulawa-lookups", daemon=True)
    process.start()
    theirs.close()  # so that the service sees the end of the pipe when we are killed

    @cache
    def port() -> int:
        if not ours.poll(_SECONDS_TO_START):
            raise RuntimeError(f"the lookup service did not start in {_SECONDS_TO_START} s")
        found: int = ours.recv()
        return found

    try:
        yield port
    finally:
        process.terminate()
        process.join()
        ours.close()


def _serve(owner: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the owner, who ends us

    async def main() -> None:
        service = _Service()
        server = await asyncio.start_server(service.converse, _HOST, 0, backlog=4096)
        asyncio.get_running_loop().add_reader(owner.fileno(), server.close)
        owner.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    with suppress(asyncio.CancelledError):  # the owner is gone
        asyncio.run(main())


class _Service:
    """Answers, and counts the calls that are open."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()
        self._most: dict[str, int] = {}

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        try:
            while True:
                request = await reader.readuntil(b"\r\n\r\n")
                body = json.dumps(await self._answer(request.split(b" ", 2)[1].decode())).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, path: str) -> dict[str, Any]:
        if path == "/calls":
            return self._calls()
        _, milliseconds, caller, ip = path.split("/")
        self._open[caller] += 1
        self._most[caller] = max(self._most.get(caller, 0), self._open[caller])
        try:
            await asyncio.sleep(int(milliseconds) / 1000)
        finally:
            self._open[caller] -= 1
        return {"ip": ip, "country": _COUNTRIES[zlib.crc32(ip.encode()) % len(_COUNTRIES)]}

    def _calls(self) -> dict[str, dict[str, int]]:
        told = {
            caller: {"open": self._open[caller], "most": most}
            for caller, most in self._most.items()
        }
        self._most = dict(self._open)
        return told


class Lookups:
    """Asks the service one question at a time, over one connection that is kept."""

    def __init__(self, port: int, caller: str = "", latency_ms: int = 0) -> None:
        self._place = f"/{latency_ms}/{caller}/"
        self._connection = http.client.HTTPConnection(_HOST, port)

    def country(self, ip: str) -> str:
        """Look up the country of an address."""
        return str(self._ask(self._place + ip)["country"])

    def calls(self) -> dict[str, dict[str, int]]:
        """Give the open calls of each caller."""
        answer: dict[str, dict[str, int]] = self._ask("/calls")
        return answer

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _ask(self, path: str) -> Any:
        self._connection.request("GET", path)
        return json.loads(self._connection.getresponse().read())


class AsyncLookups:
    """Asks the service, over as many connections as there are questions at once."""

    def __init__(self, port: int, caller: str, latency_ms: int) -> None:
        self._place = f"/{latency_ms}/{caller}/"
        self._port = port
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def country(self, ip: str) -> str:
        """Look up the country of an address."""
        if self._free:
            reader, writer = self._free.pop()
        else:
            reader, writer = await asyncio.open_connection(_HOST, self._port)
        try:
            writer.write(f"GET {self._place}{ip} HTTP/1.1\r\nHost: {_HOST}\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
            answer = json.loads(await reader.readexactly(length))
        except BaseException:
            writer.close()  # half an answer may still be on its way
            raise
        self._free.append((reader, writer))
        return str(answer["country"])

    async def close(self) -> None:
        """Close all connections."""
        for _, writer in self._free:
            writer.close()
        self._free.clear()


@asynccontextmanager
async def async_lookups(port: int, caller: str, latency_ms: int) -> AsyncIterator[AsyncLookups]:
    """Give a client while the context lasts."""
    client = AsyncLookups(port, caller, latency_ms)
    try:
        yield client
    finally:
        await client.close()
