"""Batches to Kafka in plain Python: exactly once, zombies fenced, policies, brokers that go."""

import gc
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.brokers.kafka.helpers import CLEAN, judge, out, read
from thulawa.brokers.kafka import transactions
from thulawa.brokers.kafka.client_errors import translate_errors
from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.kafka_stream_clients import KafkaStreamProducer
from thulawa.brokers.kafka.routing import OutRecord, Policies
from thulawa.brokers.kafka.topics import Topics, TopicSpec
from thulawa.brokers.kafka.transactions import (
    SinkBatch,
    SinkResult,
    SinkSpec,
    fence,
    markers,
    write,
)
from thulawa.dev.kafka_broker import DevBroker
from thulawa.errors import (
    BrokerUnreachable,
    ConfigurationError,
    Fenced,
    RecordTooLarge,
    StateError,
    UnknownTopic,
)


@pytest.fixture
def topic(topics: Topics, name: str) -> str:
    topics.ensure(name, TopicSpec(partitions=2))
    return name


@pytest.fixture
def sink(connection: Connection, topic: str) -> SinkSpec:
    return SinkSpec(connection=connection, application=f"app-{topic}")


def last_batches(sink: SinkSpec, query: str) -> dict[int, int]:
    return {task: last.number for task, last in markers(sink, query).items()}


def as_another_worker(sink: SinkSpec, task: int = 0) -> None:
    """Discard the idle producer, as a process that never had it."""
    transactions._idle.pop(sink.transactional_id(task), None)


@pytest.mark.parametrize("worker", ["the same", "another"])
def test_a_batch_that_is_run_again_writes_nothing(sink: SinkSpec, topic: str, worker: str) -> None:
    assert write(sink, SinkBatch("q", 0, 0), [out(topic, range(50))]) == SinkResult(50)
    if worker == "another":
        as_another_worker(sink)
    assert write(sink, SinkBatch("q", 0, 0), [out(topic, range(50))]).skipped
    assert write(sink, SinkBatch("q", 1, 0), [out(topic, range(50, 60))]) == SinkResult(10)
    assert last_batches(sink, "q").get(0) == 1
    assert judge(read(sink.connection, topic), range(60)) == CLEAN


@pytest.mark.parametrize("worker", ["the same", "another"])
def test_a_batch_of_an_older_checkpoint_is_refused(sink: SinkSpec, topic: str, worker: str) -> None:
    write(sink, SinkBatch("q", 10, 0), [out(topic, range(50))])
    if worker == "another":
        as_another_worker(sink)
    with pytest.raises(StateError, match=r"written batch 10, and it now sends batch 6: .* older"):
        write(sink, SinkBatch("q", 6, 0), [out(topic, range(50, 60))])
    assert judge(read(sink.connection, topic), range(50)) == CLEAN


@pytest.mark.parametrize("worker", ["the same", "another"])
def test_a_batch_that_is_run_again_by_other_tasks_is_refused(
    sink: SinkSpec, topic: str, worker: str
) -> None:
    write(sink, SinkBatch("q", 3, 0, "thulawa-kafka"), [out(topic, range(50))])
    if worker == "another":
        as_another_worker(sink)
    with pytest.raises(StateError, match=r"with the tasks 'thulawa-kafka'.*again with 'one'"):
        write(sink, SinkBatch("q", 3, 0, "one"), [out(topic, range(50))])
    assert write(sink, SinkBatch("q", 3, 0, "thulawa-kafka"), [out(topic, range(50))]).skipped
    assert not write(sink, SinkBatch("q", 4, 0, "one"), [out(topic, range(50, 60))]).skipped
    assert judge(read(sink.connection, topic), range(60)) == CLEAN


def test_a_marker_of_the_version_before_names_no_layout_and_fits_any(
    sink: SinkSpec, topic: str
) -> None:
    write(sink, SinkBatch("q", 3, 0), [out(topic, range(5))])
    as_another_worker(sink)
    assert write(sink, SinkBatch("q", 3, 0, "one"), [out(topic, range(5))]).skipped


def test_zombies_of_a_query_with_more_tasks_are_fenced_at_the_start(
    sink: SinkSpec, topic: str
) -> None:
    write(sink, SinkBatch("q", 0, 9), [out(topic, [0])])
    zombie = transactions._idle.pop(sink.transactional_id(9))
    zombie.begin(SinkBatch("q", 1, 9))
    zombie.send_all([out(topic, [1])])
    fence(sink)
    with pytest.raises(Fenced):
        zombie.commit(SinkBatch("q", 1, 9))
    assert last_batches(sink, "q") == {9: 0}
    assert judge(read(sink.connection, topic), range(1)) == CLEAN


def test_a_new_query_of_the_same_application_begins_at_batch_0(sink: SinkSpec, topic: str) -> None:
    write(sink, SinkBatch("first", 7, 0), [out(topic, range(5))])
    assert not write(sink, SinkBatch("second", 0, 0), [out(topic, range(5, 9))]).skipped
    assert last_batches(sink, "second").get(0) == 0
    assert judge(read(sink.connection, topic), range(9)) == CLEAN


def test_tasks_have_markers_of_their_own_beyond_those_there_were(
    sink: SinkSpec, topic: str
) -> None:
    for task in (0, 9):
        assert write(sink, SinkBatch("q", 0, task), [out(topic, [task])]) == SinkResult(1)
    assert last_batches(sink, "q").get(9) == 0
    assert last_batches(sink, "q").get(5) is None


def test_a_zombie_attempt_is_fenced_and_leaves_nothing(sink: SinkSpec, topic: str) -> None:
    def while_another_attempt_takes_over() -> Iterator[list[OutRecord]]:
        yield out(topic, range(10))
        as_another_worker(sink)
        assert write(sink, SinkBatch("q", 0, 0), [out(topic, range(10))]) == SinkResult(10)
        yield out(topic, range(10, 20))

    with pytest.raises(Fenced):
        write(sink, SinkBatch("q", 0, 0), while_another_attempt_takes_over())
    assert judge(read(sink.connection, topic), range(10)) == CLEAN


def test_a_fatal_error_is_told_however_often_the_client_has_tripped_over_it() -> None:
    fenced = KafkaException(KafkaError(KafkaError._FENCED))

    def trip(times: int) -> None:
        try:
            if times == 0:
                raise fenced
            trip(times - 1)
        except Exception as error:
            raise SystemError("returned a result with an exception set") from error

    for times in range(3):
        with pytest.raises(Fenced), translate_errors("committing"):
            trip(times)


def test_a_failing_batch_leaves_nothing_and_can_be_run_again(sink: SinkSpec, topic: str) -> None:
    def breaks() -> Iterator[list[OutRecord]]:
        yield out(topic, range(10))
        raise RuntimeError("the function failed")

    with pytest.raises(RuntimeError, match="the function failed"):
        write(sink, SinkBatch("q", 0, 0), breaks())
    assert read(sink.connection, topic) == []
    assert write(sink, SinkBatch("q", 0, 0), [out(topic, range(10))]) == SinkResult(10)
    assert judge(read(sink.connection, topic), range(10)) == CLEAN


@pytest.mark.timeout(240)  # a broker is started within it
def test_a_kept_producer_survives_a_broker_that_is_killed_and_restarted(
    sink: SinkSpec, topic: str, broker: DevBroker
) -> None:
    write(sink, SinkBatch("q", 0, 0), [out(topic, range(10))])
    broker.kill()
    restart = threading.Timer(0.5, broker.up)
    restart.start()
    write(sink, SinkBatch("q", 1, 0), [out(topic, range(10, 20))])
    restart.join()
    assert judge(read(sink.connection, topic), range(20)) == CLEAN


@pytest.mark.timeout(240)  # a broker is started within it
def test_a_broker_that_dies_while_a_batch_is_claimed_is_waited_for(
    sink: SinkSpec, topic: str, broker: DevBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(sink, SinkBatch("q", 0, 0), [out(topic, range(10))])
    restart = threading.Timer(1.0, broker.up)

    def dies_unnoticed(sender: object) -> bool:
        monkeypatch.undo()
        broker.kill()
        restart.start()
        return True

    monkeypatch.setattr(transactions.SinkProducer, "steady", property(dies_unnoticed))
    assert write(sink, SinkBatch("q", 1, 0), [out(topic, range(10, 20))]) == SinkResult(10)
    restart.join()
    assert judge(read(sink.connection, topic), range(20)) == CLEAN


def test_missing_topics_and_oversized_records_fail_unless_a_policy_says_otherwise(
    sink: SinkSpec, topic: str, topics: Topics
) -> None:
    nowhere = out(f"{topic}-gone", [1])
    large = out(topic, [2], value=b"x" * 2_000_000)
    with pytest.raises(UnknownTopic, match=f"{topic}-gone"):
        write(sink, SinkBatch("q", 0, 0), [nowhere])
    with pytest.raises(RecordTooLarge):
        write(sink, SinkBatch("q", 0, 0), [large])
    assert read(sink.connection, topic) == []

    dead = f"{topic}-dead"
    topics.ensure(dead)
    policies = Policies(missing="dead_letter", oversized="dead_letter", dead_letter=dead)
    careful = replace(sink, policies=policies)
    assert write(careful, SinkBatch("q", 0, 0), [nowhere + large + out(topic, [3])]) == SinkResult(
        3, 2
    )
    letters = [dict(message.headers() or []) for message in read(sink.connection, dead)]
    assert [one["__streams.errors.exception"] for one in letters] == [
        b"UnknownTopic", b"RecordTooLarge",
    ]  # fmt: skip
    assert letters[1]["thulawa.errors.size"] == b"2000000"
    assert judge(read(sink.connection, topic), [3]) == CLEAN

    making = replace(sink, policies=Policies(missing="create", spec=TopicSpec(partitions=3)))
    write(making, SinkBatch("q", 1, 0), [nowhere])
    assert topics.partitions(f"{topic}-gone") == {f"{topic}-gone": 3}


def test_what_is_too_large_for_a_topic_that_the_sink_makes_is_a_dead_letter_too(
    sink: SinkSpec, topic: str
) -> None:
    made, dead = f"{topic}-made", f"{topic}-dead"
    policies = Policies(missing="create", oversized="dead_letter", dead_letter=dead)
    records = out(made, [1], value=b"x" * 2_000_000) + out(made, [2])
    assert write(replace(sink, policies=policies), SinkBatch("q", 0, 0), [records]) == SinkResult(
        2, 1
    )
    assert judge(read(sink.connection, made), [2]) == CLEAN
    assert len(read(sink.connection, dead)) == 1


def test_many_records_that_are_too_large_are_called_so(sink: SinkSpec, topic: str) -> None:
    # the transaction has failed by the time that the later ones are sent
    chunks = (out(topic, [number], value=b"x" * 2_000_000) for number in range(100))
    with pytest.raises(RecordTooLarge, match=f"topic {topic}"):
        write(sink, SinkBatch("q", 0, 0), chunks)


def test_records_go_where_java_s_clients_put_them_or_where_they_ask_to(
    sink: SinkSpec, topic: str
) -> None:
    from thulawa.brokers.embedded import partition_of  # noqa: PLC0415 the reference, held to Java's own figures

    write(sink, SinkBatch("q", 0, 0), [out(topic, range(40)) + out(topic, [99], partition=1)])
    for message in read(sink.connection, topic):
        key = message.key()
        assert isinstance(key, bytes)
        if message.value() == b"99":
            assert message.partition() == 1
        else:
            assert message.partition() == partition_of(key, 2)


def test_closed_producers_keep_no_socket_until_garbage_is_collected(
    sink: SinkSpec, topic: str, name: str
) -> None:
    def use(number: int) -> None:
        write(sink, SinkBatch("q", number, 0), [out(topic, range(5))])
        transactions.close_producers()
        with closing(KafkaStreamProducer(sink.connection, f"{name}-host", 30.0)) as producer:
            producer.send(topic, None, b"k", b"v", 1)
            producer.commit("group", {})

    use(0)
    gc.disable()
    try:
        before = len([*Path("/proc/self/fd").iterdir()])
        for number in range(1, 4):
            use(number)
        assert len([*Path("/proc/self/fd").iterdir()]) <= before
    finally:
        gc.enable()


def test_records_that_are_still_on_their_way_are_no_success(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    patient = Connection("127.0.0.1:1", {"message.timeout.ms": "600000"})
    sink = SinkSpec(
        connection=patient, application="a", guarantee="at_least_once", delivery_timeout=1
    )
    monkeypatch.setattr(transactions, "_ANSWER", 0.0)
    sender = transactions.SinkProducer(sink, 0)
    sender._producer.produce("t", b"1")
    with pytest.raises(BrokerUnreachable, match="1 record"):
        sender.flush()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"application": ""}, "application"),
        ({"guarantee": "perhaps"}, "^guarantee is one of exactly_once, .* not 'perhaps'"),
        ({"delivery_timeout": 400.0}, "transaction_timeout"),
    ],
    ids=["no application", "no such guarantee", "longer than the transaction"],
)
def test_a_sink_that_cannot_work_is_refused(changes: dict[str, object], reason: str) -> None:
    sink = SinkSpec(connection=Connection("localhost:1"), application="a")
    with pytest.raises(ConfigurationError, match=reason):
        replace(sink, **changes)  # type: ignore[arg-type]
