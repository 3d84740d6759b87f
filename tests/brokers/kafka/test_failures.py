"""What goes wrong from outside: a clear error in bounded time, nothing lost, on it goes after."""

import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.brokers.conftest import PASSWORDS
from tests.brokers.kafka.helpers import CLEAN, judge, out, read
from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.routing import OutRecord
from thulawa.brokers.kafka.topics import Topics
from thulawa.brokers.kafka.transactions import (
    SinkBatch,
    SinkResult,
    SinkSpec,
    close_producers,
    write,
)
from thulawa.dev.kafka_broker import DevBroker
from thulawa.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    Fenced,
    UnknownTopic,
)


@pytest.fixture
def topic(topics: Topics, name: str) -> str:
    topics.ensure(name)
    return name


@pytest.fixture
def sink(connection: Connection, topic: str) -> SinkSpec:
    return SinkSpec(
        connection=connection, application=f"app-{topic}", transaction_timeout=60,
        delivery_timeout=3,
    )  # fmt: skip


@pytest.mark.timeout(240)  # a broker is started within it
def test_a_broker_that_stays_away_is_an_error_and_the_batch_goes_out_when_it_is_back(
    sink: SinkSpec, topic: str, broker: DevBroker
) -> None:
    write(sink, SinkBatch("q", 0, 0), [out(topic, range(10))])
    broker.kill()
    began = time.monotonic()
    with pytest.raises(BrokerUnreachable, match="start the broker"):
        write(sink, SinkBatch("q", 1, 0), [out(topic, range(10, 20))])
    assert time.monotonic() - began < 60
    broker.up()
    assert write(sink, SinkBatch("q", 1, 0), [out(topic, range(10, 20))]) == SinkResult(10)
    assert judge(read(sink.connection, topic), range(20)) == CLEAN


def test_a_wrong_password_is_an_error_of_the_sink_and_the_right_one_mends_it(
    sink: SinkSpec, topic: str, broker: DevBroker
) -> None:
    stranger = replace(sink, connection=broker.secured("ann", "wrong"))
    with pytest.raises(AuthenticationFailed, match="password"):
        write(stranger, SinkBatch("q", 0, 0), [out(topic, range(10))])
    known = replace(sink, connection=broker.secured("ann", PASSWORDS["ann"]))
    assert write(known, SinkBatch("q", 0, 0), [out(topic, range(10))]) == SinkResult(10)
    assert judge(read(sink.connection, topic), range(10)) == CLEAN


def test_an_output_topic_that_is_deleted_is_named_and_can_be_made_again(
    sink: SinkSpec, topic: str, topics: Topics
) -> None:
    write(sink, SinkBatch("q", 0, 0), [out(topic, range(10))])
    topics.delete_topic(topic)
    with pytest.raises(UnknownTopic, match=topic):
        write(sink, SinkBatch("q", 1, 0), [out(topic, range(10, 20))])
    topics.ensure(topic)
    assert write(sink, SinkBatch("q", 1, 0), [out(topic, range(10, 20))]) == SinkResult(10)
    assert judge(read(sink.connection, topic), range(10, 20)) == CLEAN


@pytest.mark.usefixtures("broker")  # others look for what has expired less often
def test_a_transaction_that_expires_leaves_nothing_and_the_batch_can_be_run_again(
    sink: SinkSpec, topic: str
) -> None:
    hasty = replace(sink, transaction_timeout=1, delivery_timeout=1)

    def takes_too_long() -> Iterator[list[OutRecord]]:
        yield out(topic, range(10))
        time.sleep(5)  # ours looks every second
        yield out(topic, range(10, 20))

    with pytest.raises(Fenced, match="transaction_timeout"):
        write(hasty, SinkBatch("q", 0, 0), takes_too_long())
    assert read(sink.connection, topic) == []
    assert write(sink, SinkBatch("q", 0, 0), [out(topic, range(20))]) == SinkResult(20)
    assert judge(read(sink.connection, topic), range(20)) == CLEAN


@pytest.mark.skipif(sys.platform != "linux", reason="limits another process, as Linux can")
@pytest.mark.timeout(240)  # a broker is started within it
def test_a_broker_without_room_is_an_error_and_the_batch_goes_out_when_there_is_some(
    sink: SinkSpec, topic: str, broker: DevBroker
) -> None:
    write(sink, SinkBatch("q", 0, 0), [out(topic, range(10))])
    mib = 1024 * 1024
    (pid,) = broker.status().pids
    # as a disk that is full: no file may grow beyond this (an index file takes 10 MiB at once)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (11 * mib, 11 * mib))
    large = [out(topic, [number], value=b"x" * 900_000) for number in range(10, 40)]
    began = time.monotonic()
    with pytest.raises(BrokerUnreachable):
        write(sink, SinkBatch("q", 1, 0), large)
    assert time.monotonic() - began < 60
    close_producers()
    broker.down()
    broker.up()
    assert write(sink, SinkBatch("q", 1, 0), [out(topic, range(10, 20))]) == SinkResult(10)
    assert judge(read(sink.connection, topic), range(20)) == CLEAN
