"""One broker for all tests of a process, with a name of its own."""

import os
import shutil
from collections.abc import Iterator
from itertools import count

import pytest

from thulawa.kafka.broker import Broker
from thulawa.kafka.connection import Connection
from thulawa.kafka.maven import fetched
from thulawa.kafka.topics import Topics
from thulawa.kafka.transactions import forget_kept

PASSWORDS = {"ann": "right-and-secret"}
_numbers = count()


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    if shutil.which("mvn") is None and not fetched("broker"):
        pytest.skip("Kafka's tests need Apache Maven (mvn) to fetch a broker; it is not installed")
    with Broker(f"tests-{os.getpid()}", port=0, passwords=PASSWORDS) as made:
        yield made
        forget_kept()


@pytest.fixture
def connection(broker: Broker) -> Connection:
    return broker.up().connection


@pytest.fixture
def topics(connection: Connection) -> Topics:
    return Topics(connection)


@pytest.fixture
def name() -> str:
    """Give a name that no other test uses, for topics and applications."""
    return f"t{next(_numbers)}"
