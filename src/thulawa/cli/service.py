"""A GeoIP lookup service on loopback, slow on purpose, and a client for it.

The service is a process of its own, so that its work does not count as ours. It speaks just
enough HTTP/1.1: ``GET /<ip>`` is answered with a country after the given delay, and
connections are kept alive.
"""

import asyncio
import json
import multiprocessing
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from multiprocessing.connection import Connection

__all__ = ["LookupClient", "lookup_client", "lookup_service"]

_COUNTRIES = ("BR", "DE", "IN", "JP", "KE", "LK", "NO", "US")


@contextmanager
def lookup_service(latency: float) -> Iterator[int]:
    """Run the service while the context lasts; give its port."""
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_serve, args=(latency, theirs), daemon=True)
    process.start()
    try:
        if not ours.poll(30):
            raise RuntimeError("the lookup service did not start within 30 s")
        yield ours.recv()
    finally:
        process.terminate()
        process.join()


def _serve(latency: float, ready: Connection) -> None:
    async def main() -> None:
        server = await asyncio.start_server(
            lambda reader, writer: _converse(reader, writer, latency), "127.0.0.1", 0, backlog=4096
        )
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


async def _converse(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, latency: float
) -> None:
    try:
        while True:
            request = await reader.readuntil(b"\r\n\r\n")
            ip = request.split(b" ", 2)[1][1:]
            await asyncio.sleep(latency)
            country = _COUNTRIES[zlib.crc32(ip) % len(_COUNTRIES)]
            body = json.dumps({"ip": ip.decode(), "country": country}).encode()
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            writer.write(head + body)
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


class LookupClient:
    """Asks the service, over as many connections as there are questions at once."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def country(self, ip: str) -> str:
        """Look up the country of an address."""
        if self._free:
            reader, writer = self._free.pop()
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(f"GET /{ip} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
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
async def lookup_client(port: int) -> AsyncIterator[LookupClient]:
    """Give a client while the context lasts."""
    client = LookupClient(port)
    try:
        yield client
    finally:
        await client.close()
