"""What a task sends reaches the sink as it was sent; what cannot be written is answered for."""

from collections.abc import Iterable
from functools import partial
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from thulawa.errors import (
    ProductionError,
    StreamError,
    UnknownTopic,
)
from thulawa.runtime.blocks import Block
from thulawa.runtime.handlers import (
    DeadLetter,
    DeadLetterQueue,
    ErrorRecord,
    Handlers,
    Resume,
    log_and_continue,
)
from thulawa.runtime.planning import plan
from thulawa.runtime.task_options import TaskOptions
from thulawa.spark.micro_batch.collector import TaskOutput
from thulawa.spark.micro_batch.output_limits import OutputLimits
from thulawa.spark.micro_batch.program import Program
from thulawa.spark.micro_batch.wire import packed_batch, unpack_outgoing
from thulawa.streams.streams_builder import StreamsBuilder
from thulawa.topology.nodes import Sink


def made(options: TaskOptions) -> tuple[TaskOutput, Sink]:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    planned = plan(builder.build(), {"in": 1})
    (part,) = planned.parts.values()
    (sink,) = part.group.sinks
    return TaskOutput(Program("app", "app/1", planned, options), part, 0), sink


def rows(output: TaskOutput) -> list[dict[str, Any]]:
    packed: Iterable[pa.RecordBatch] = [packed_batch(output.take())]
    return [row for batch in unpack_outgoing(iter(packed)) for row in batch.to_pylist()]


def test_records_keep_order_headers_and_absent_parts() -> None:
    output, sink = made(TaskOptions())
    output.send(sink, "out", "a", {"n": 1}, 5, (("h", b"x"),))
    output.send(sink, "out", None, None, 6, ())
    output.send(sink, "out", "b", 12, 7, ())
    found = rows(output)
    assert [(row["key"], row["value"], row["topic"]) for row in found] == [
        (b"a", b'{"n":1}', "out"),
        (None, None, "out"),
        (b"b", b"12", "out"),
    ]
    assert [row["timestamp"].timestamp() for row in found] == [0.005, 0.006, 0.007]
    assert [row["headers"] for row in found] == [[{"key": "h", "value": b"x"}], None, None]
    assert rows(output) == []


def test_the_handler_answers_for_what_cannot_be_written() -> None:
    def aside(error: StreamError, record: ErrorRecord) -> Resume:
        return Resume((DeadLetter("dead", b"k", b"odd", record.timestamp, ()),))

    output, sink = made(TaskOptions(handlers=Handlers(production=aside)))
    output.send(sink, "out", "a", 1, 0, ())
    output.send(sink, "out", "b", object(), 0, ())
    output.send(sink, "out", 3, 1, 0, ())
    assert [(row["topic"], row["value"]) for row in rows(output)] == [
        ("out", b"1"),
        ("dead", b"odd"),
        ("dead", b"odd"),
    ]


@pytest.mark.parametrize(
    ("key", "value"), [("a", object()), (7, 1), ("long", "x" * 20)], ids=["value", "key", "size"]
)
def test_without_a_handler_it_fails_the_task(key: Any, value: Any) -> None:
    output, sink = made(TaskOptions(max_record_bytes=10))
    with pytest.raises(StreamError) as caught:
        output.send(sink, "out", key, value, 0, ())
    assert caught.value.topic == "out"


class Known:
    """A broker with two topics, of which one takes little."""

    asked = 0

    def max_record_size(self, topic: str) -> int:
        self.asked += 1
        if topic not in ("out", "dead"):
            raise UnknownTopic("there is no such topic", topic=topic)
        return 100 if topic == "out" else 70_000


def limited(handlers: Handlers) -> tuple[TaskOutput, Sink, Known]:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    planned = plan(builder.build(), {"in": 1})
    (part,) = planned.parts.values()
    (sink,) = part.group.sinks
    known, run = Known(), f"run/{uuid4()}"
    broker: Any = known
    options = TaskOptions(handlers=handlers)
    program = Program("app", run, planned, options, limits=OutputLimits(broker))
    return TaskOutput(program, part, 0), sink, known


@pytest.mark.parametrize("way", ["send", "sender", "block_sender"])
def test_an_oversized_record_is_found_whichever_way_it_is_sent(way: str) -> None:
    output, sink, known = limited(Handlers(production=DeadLetterQueue("dead")))
    values = ["small", "x" * 200, "large " * 20, "last"]
    records = [(n, n, str(n), value, ()) for n, value in enumerate(values)]
    if way == "block_sender":
        sent = output.block_sender(sink, "out")
        assert sent is not None
        sent(Block(*map(list, zip(*records, strict=True))))
    else:
        one = output.sender(sink, "out") if way == "sender" else partial(output.send, sink, "out")
        assert one is not None
        for _, time, key, value, headers in records:
            one(key, value, time, headers)
    found = [(row["topic"], row["key"]) for row in rows(output)]
    assert sorted(found) == [("dead", b"1"), ("dead", b"2"), ("out", b"0"), ("out", b"3")]
    assert known.asked == 2, "once for each topic"


def test_headers_count_towards_the_size() -> None:
    output, sink, _ = limited(Handlers(production=log_and_continue))
    output.send(sink, "out", "k", "v", 0, (("h", b"x" * 100),))
    assert rows(output) == []


def test_a_topic_that_is_not_there_is_asked_for_again_and_names_itself() -> None:
    output, sink, known = limited(Handlers(production=DeadLetterQueue("dead")))
    assert output.sender(sink, "gone") is None
    for key in "ab":
        output.send(sink, "gone", key, 1, 0, ())
    found = rows(output)
    assert [row["topic"] for row in found] == ["dead", "dead"]
    headers = {one["key"]: one["value"] for one in found[0]["headers"]}
    assert headers["__streams.errors.message"] == b"there is no topic 'gone': create it"
    assert known.asked == 2, "not for every record"


def test_a_dead_letter_that_is_too_large_is_cut_and_one_without_a_topic_is_an_error() -> None:
    output, sink, _ = limited(Handlers(production=DeadLetterQueue("dead")))
    output.send(sink, "out", "k", "x" * 80_000, 0, ())
    (letter,) = rows(output)
    headers = {one["key"]: one["value"] for one in letter["headers"]}
    assert len(letter["value"]) == 64 * 1024
    assert headers["thulawa.errors.size"] == b"80000"
    lost, sink, _ = limited(Handlers(production=DeadLetterQueue("nowhere")))
    with pytest.raises(ProductionError, match="there is no topic 'nowhere'"):
        lost.send(sink, "out", "k", "x" * 200, 0, ())
