"""The control channel: status to the driver, stop to the hosts, and nobody without the token."""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from thulawa.errors import ThulawaError
from thulawa.spark.continuous import control_channel
from thulawa.spark.continuous.control_channel import (
    ControlAddress,
    ControlClient,
    ControlServer,
    HostStatus,
)


@pytest.fixture
def server() -> Iterator[ControlServer]:
    server = ControlServer("127.0.0.1")
    yield server
    server.close()


class Events:
    """What a client has been told."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self.lost: list[ThulawaError] = []

    def client(self, address: ControlAddress, status: HostStatus) -> ControlClient:
        return ControlClient(
            address,
            status.host,
            status=lambda: status,
            stop=self.stopped.set,
            lost=self.lost.append,
        )


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_driver_knows_the_status_of_hosts_and_stops_them(server: ControlServer) -> None:
    events = [Events(), Events()]
    clients = [
        one.client(server.address, HostStatus(number, running=True, commits=number))
        for number, one in enumerate(events)
    ]
    until(lambda: len(server.status()) == 2)
    assert server.status()[1].commits == 1
    assert not any(one.stopped.is_set() for one in events)
    server.stop_hosts()
    for one in events:
        assert one.stopped.wait(30)
    for client in clients:
        client.close()


def test_a_wrong_token_is_rejected(server: ControlServer) -> None:
    events = Events()
    wrong = replace(server.address, token="guessed")  # noqa: S106
    events.client(wrong, HostStatus(0, running=True))
    until(lambda: events.lost)
    assert server.status() == {}


def test_frames_that_are_too_long_or_no_json_are_rejected(server: ControlServer) -> None:
    for data in (struct.pack("!I", 2**31), struct.pack("!I", 4) + b"\x80\x04K*"):
        with socket.create_connection((server.address.host, server.address.port)) as connection:
            connection.sendall(data)
            connection.settimeout(30)
            assert connection.recv(1) == b"", "the connection is closed without an answer"
    assert server.status() == {}


def test_a_later_attempt_takes_the_place_of_an_earlier_one(server: ControlServer) -> None:
    old, new = Events(), Events()
    old.client(server.address, HostStatus(0, running=True, commits=1))
    until(server.status)
    client = new.client(server.address, HostStatus(0, running=True, commits=2))
    until(lambda: server.status()[0].commits == 2)
    until(lambda: old.lost)
    client.close()


def test_a_host_notices_that_its_driver_is_gone(
    server: ControlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_channel, "_SILENCE_SECONDS", 0.5)
    events = Events()
    events.client(server.address, HostStatus(0, running=True))
    until(server.status)
    server.close()
    until(lambda: events.lost)
    assert "the driver does not answer" in str(events.lost[0])


def test_a_closed_channel_leaves_no_thread_and_accepts_nobody() -> None:
    server = ControlServer("127.0.0.1")
    accepting = [one for one in threading.enumerate() if one.name == "thulawa-control"]
    server.close()
    until(lambda: not any(one.is_alive() for one in accepting))
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((server.address.host, server.address.port), timeout=5)
