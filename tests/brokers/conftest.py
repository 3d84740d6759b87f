"""The broker of the tests: that of THULAWA_KAFKA, or one of their own for all of a process.

Tests that ask for `broker` may kill it, fill its disk or want its passwords, and have their own in
any case. The others only ask for a `connection`.
"""

import os
import shutil
from collections.abc import Iterator
from itertools import count
from uuid import uuid4

import pytest

from benchmarks.brokers import given, swept
from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.topics import Topics
from thulawa.brokers.kafka.transactions import close_producers
from thulawa.dev.kafka_broker import DevBroker
from thulawa.dev.maven import fetched

PASSWORDS = {"ann": "right-and-secret"}
_RUN = f"t{uuid4().hex[:8]}"
_numbers = count()


@pytest.fixture(scope="session")
def broker() -> Iterator[DevBroker]:
    if shutil.which("mvn") is None and not fetched("broker"):
        pytest.skip("Kafka's tests need Apache Maven (mvn) to fetch a broker; it is not installed")
    with DevBroker(f"tests-{os.getpid()}", port=0, passwords=PASSWORDS) as made:
        yield made
        close_producers()


@pytest.fixture(scope="session")
def given_broker() -> Iterator[Connection | None]:
    """Connect to the broker of THULAWA_KAFKA; the topics of this run are deleted at its end."""
    if (connection := given()) is None:
        yield None
        return
    with swept(connection, _RUN):
        yield connection
        close_producers()


@pytest.fixture
def connection(request: pytest.FixtureRequest, given_broker: Connection | None) -> Connection:
    if given_broker is not None and "broker" not in request.fixturenames:
        return given_broker
    own: DevBroker = request.getfixturevalue("broker")
    return own.up().connection


@pytest.fixture
def topics(connection: Connection) -> Topics:
    return Topics(connection)


@pytest.fixture
def name() -> str:
    """Give a name that no other test uses, for topics, applications and views."""
    return f"{_RUN}_{next(_numbers)}"
