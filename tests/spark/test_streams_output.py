"""What a task sends reaches the sink as it was sent; what cannot be written is answered for."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest

from thulawa.core.errors import StreamError
from thulawa.dsl.builder import StreamsBuilder
from thulawa.runtime.handlers import DeadLetter, ErrorRecord, Handlers, Resume
from thulawa.runtime.options import TaskOptions
from thulawa.runtime.planning import plan
from thulawa.spark.streams.collecting import TaskOutput
from thulawa.spark.streams.program import Program
from thulawa.spark.streams.wire import packed_batch, unpack_outgoing
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
