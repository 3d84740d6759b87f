"""What an application asks of Kafka when its checkpoint is lost."""

import time

import pytest

from tests.brokers.kafka.helpers import out, read
from thulawa.brokers.kafka import transactions
from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.groups import committed_offsets
from thulawa.brokers.kafka.topics import Topics, TopicSpec
from thulawa.brokers.kafka.transactions import SinkBatch, SinkSpec, write
from thulawa.brokers.port import read_to_end
from thulawa.core.markers import LastBatch
from thulawa.errors import (
    Fenced,
    RecordTooLarge,
    TopicDiffers,
)
from thulawa.spark.micro_batch.brokers import sink_writer, streams_broker


def test_an_open_transaction_of_an_earlier_life_is_ended_and_its_writer_fenced(
    connection: Connection, topics: Topics, name: str
) -> None:
    topics.ensure(name)
    mine = streams_broker(connection)
    sink = SinkSpec(connection=connection, application=name)
    write(sink, SinkBatch("q", 4, 0), [out(name, [1])])
    write(sink, SinkBatch("q", 3, 1), [out(name, [2])])
    zombie = transactions._idle.pop(sink.transactional_id(1))
    zombie.begin(SinkBatch("q", 4, 1))
    zombie.send_all([out(name, [3])])
    zombie._producer.flush(30)
    assert topics.end_offsets(name) != topics.end_offsets(name, committed=False)

    began = time.monotonic()
    assert [one.value for one in read_to_end(mine.broker, name)] == [b"1", b"2"], (
        "who starts does not wait"
    )
    mine.settle(name, name)
    assert time.monotonic() - began < 60, "the transaction itself would be open for 300 s"
    assert mine.last_batches(name, "q") == {0: 4, 1: 3}
    with pytest.raises(Fenced):
        zombie.commit(SinkBatch("q", 4, 1))
    assert [message.value() for message in read(connection, name)] == [b"1", b"2"]

    with mine.broker.transaction(sink_writer(name, "next"), 1, LastBatch(0)):
        pass
    assert mine.last_batches(name, "next") == {1: 0}
    assert write(sink, SinkBatch("next", 0, 1), [out(name, [4])]).skipped


def test_compacted_topics_are_made_once_and_hold_what_is_put(
    connection: Connection, topics: Topics, name: str
) -> None:
    mine = streams_broker(connection)
    for _ in range(2):
        mine.create(name, 2, compact=True)
    with pytest.raises(TopicDiffers, match="2 partitions"):
        mine.create(name, 3, compact=True)
    mine.put(name, b"k", b"1")
    mine.put(name, b"k", b"2")
    assert [(one.key, one.value) for one in read_to_end(mine.broker, name)] == [
        (b"k", b"1"),
        (b"k", b"2"),
    ]
    assert mine.broker.start_offsets(name) == {name: {0: 0, 1: 0}}
    mine.broker.commit(f"{name}-app", {name: {0: 1}})
    assert committed_offsets(connection, f"{name}-app") == {name: {0: 1}}
    mine.broker.delete_topic(name)
    assert mine.broker.partitions(name) == {}


def test_a_record_that_the_broker_refuses_is_not_taken_for_written(
    connection: Connection, topics: Topics, name: str
) -> None:
    topics.ensure(name, TopicSpec(settings={"max.message.bytes": "100"}))
    with pytest.raises(RecordTooLarge, match=name):
        streams_broker(connection).put(name, b"k", b"x" * 1_000)
