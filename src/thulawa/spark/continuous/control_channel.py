"""The control channel between the driver and the hosts of a continuous application.

The driver listens on a port of its own address; each host connects to it when it starts, and proves
with a random token that it belongs to the application. Messages are JSON in frames of bounded
length; nothing is unpickled. A host reports its status ten times a second; the driver answers each
report, which is how a host notices within seconds that its driver is gone.
"""

import hmac
import logging
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from thulawa.errors import ThulawaError

_log = logging.getLogger("thulawa.streams")

_Message = TypeVar("_Message", bound=msgspec.Struct)

_LENGTH = struct.Struct("!I")
_MAX_FRAME = 16 * 2**20
_REPORT_SECONDS = 0.1
_SILENCE_SECONDS = 10.0  # after which the other side counts as gone
_HELLO_SECONDS = 5.0


class HostStatus(msgspec.Struct):
    """What a host reports to the driver.

    ``rounds`` counts the passes of its processing loop. ``global_positions`` are the offsets up to
    which it has read global topics. ``restoring`` has, for each store of a task (``"0_1/counts"``),
    how many offsets of its changelog have been restored since the start, and of how many.
    """

    host: int
    restored: int = 0
    running: bool = False
    commits: int = 0
    rounds: int = 0
    global_positions: dict[str, dict[int, int]] = {}
    restoring: dict[str, tuple[int, int]] = {}


class Hello(msgspec.Struct, tag=True):
    """The first message of a host."""

    token: str
    host: int
    attempt: str


class Report(msgspec.Struct, tag=True):
    """The status of a host."""

    status: HostStatus


class Command(msgspec.Struct, tag=True):
    """The driver's answer to a report: whether the host is to stop."""

    stop: bool = False


@dataclass(frozen=True, slots=True)
class ControlAddress:
    """Where the driver listens, and the token that it expects."""

    host: str
    port: int
    token: str


class ControlServer:
    """The driver's end: knows the last status of every host, and tells them to stop."""

    def __init__(self, address: str) -> None:
        self._token = secrets.token_urlsafe(32)
        self._listener = socket.create_server((address, 0))
        self.address = ControlAddress(address, self._listener.getsockname()[1], self._token)
        self._lock = threading.Lock()
        self._status: dict[int, tuple[float, HostStatus]] = {}
        self._attempts: dict[int, str] = {}
        self._stop = threading.Event()
        self._closed = False
        threading.Thread(target=self._accept, name="thulawa-control", daemon=True).start()

    def status(self) -> dict[int, HostStatus]:
        """Return the last status of each host that has connected."""
        with self._lock:
            return {host: status for host, (_, status) in self._status.items()}

    def stop_hosts(self) -> None:
        """Ask all hosts to finish, commit and end."""
        self._stop.set()

    def close(self) -> None:
        """Close the channel: hosts that still run end at once."""
        self._closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                connection.settimeout(_HELLO_SECONDS)
                hello = _receive(connection, Hello)
                if not hmac.compare_digest(hello.token.encode(), self._token.encode()):
                    _log.warning("a connection to the control channel had a wrong token")
                    return
                with self._lock:
                    self._attempts[hello.host] = hello.attempt
                connection.settimeout(_SILENCE_SECONDS)
                while not self._closed:
                    status = _receive(connection, Report).status
                    with self._lock:
                        if self._attempts[hello.host] != hello.attempt:
                            return  # a later attempt has taken over
                        self._status[hello.host] = time.monotonic(), status
                    _send(connection, Command(stop=self._stop.is_set()))
            except (OSError, msgspec.DecodeError, EOFError):
                return


class ControlClient:
    """A host's end: reports its status on a thread, and calls back when the driver says stop."""

    def __init__(
        self,
        address: ControlAddress,
        host: int,
        *,
        status: Callable[[], HostStatus],
        stop: Callable[[], None],
        lost: Callable[[ThulawaError], None],
    ) -> None:
        self._address = address
        self._host = host
        self._status, self._stop, self._lost = status, stop, lost
        self._done = threading.Event()
        threading.Thread(target=self._run, name="thulawa-control", daemon=True).start()

    def close(self) -> None:
        """End the thread."""
        self._done.set()

    def _run(self) -> None:
        try:
            place = self._address.host, self._address.port
            with socket.create_connection(place, timeout=_SILENCE_SECONDS) as connection:
                attempt = secrets.token_hex(8)
                _send(connection, Hello(self._address.token, self._host, attempt))
                told = False
                while not self._done.is_set():
                    _send(connection, Report(self._status()))
                    if _receive(connection, Command).stop and not told:
                        told = True
                        self._stop()
                    self._done.wait(0.05 if told else self._pause())
                with suppress(OSError, EOFError, msgspec.DecodeError):
                    _send(connection, Report(self._status()))
                    _receive(connection, Command)
        except (OSError, EOFError, msgspec.DecodeError) as error:
            if not self._done.is_set():
                self._lost(ThulawaError(f"the driver does not answer any more: {error}"))

    def _pause(self) -> float:
        return 0.05 if not self._status().running else _REPORT_SECONDS


def _send(connection: socket.socket, message: msgspec.Struct) -> None:
    data = msgspec.json.encode(message)
    connection.sendall(_LENGTH.pack(len(data)) + data)


def _receive(connection: socket.socket, kind: type[_Message]) -> _Message:
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    if length > _MAX_FRAME:
        raise EOFError(f"a frame of {length} bytes")
    return msgspec.json.decode(_exactly(connection, length), type=kind)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        if not (some := connection.recv(size - len(data))):
            raise EOFError("the connection was closed")
        data += some
    return bytes(data)
