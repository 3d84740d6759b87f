"""A program through the code that runs on Spark's workers, without Spark around it."""

from collections.abc import Iterable
from itertools import count
from typing import Any

import pyarrow as pa

from thulawa.runtime.options import TaskOptions
from thulawa.runtime.planning import plan
from thulawa.spark.streams.front import front
from thulawa.spark.streams.hosting import hosted
from thulawa.spark.streams.program import Program
from thulawa.spark.streams.shipping import Shipped
from thulawa.spark.streams.wire import CLOCK, SINK, Packed, packed_batch, unpack_outgoing
from thulawa.topology.topology import Topology

__all__ = ["dry_run"]

Rows = list[tuple[str, Any, Any]]  # topic, key, value
_runs = count()
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class Kept(dict[str, bytes]):
    """Spark's state of one task."""

    def put(self, name: str, data: bytes) -> None:
        self[name] = data

    def remove(self, name: str) -> None:
        del self[name]


def dry_run(
    topology: Topology, inputs: dict[str, list[tuple[bytes | None, bytes | None]]], **options: Any
) -> Rows:
    """Run one batch of records through the front and every stage; give what leaves.

    Records come 10 ms apart, and at each time those of the topic that is named first.
    """
    planned = plan(topology, dict.fromkeys(inputs, 1), **options)
    read = {topic: records for topic, records in inputs.items() if topic in planned.topics}
    program = Program("app", f"app/{next(_runs)}", planned, TaskOptions(commit="batch"))
    program = Shipped(program).open()
    rows = [
        row for batch in front(Shipped(program), iter(_source(read))) for row in _unpacked(batch)
    ]
    kept: dict[tuple[int, int], Kept] = {}
    for stage in range(1, planned.stages + 1):
        mine = [row for row in rows if row.stage == stage]
        rows = [row for row in rows if row.stage != stage]
        for part in planned.parts.values():
            for task in range(len(part.tasks) if part.stage == stage else 0):
                batch = [row for row in mine if row.task == task and _is_for(row, part, planned)]
                state = kept.setdefault((part.group.id, task), Kept())
                rows += hosted(program, part, task).run(batch, 1_000_000, state)
    leaving = packed_batch([row for row in rows if row.stage == SINK])
    return [
        (row["topic"], row["key"], row["value"])
        for out in unpack_outgoing(iter([leaving]))
        for row in out.to_pylist()
    ]


def _is_for(row: Packed, part: Any, planned: Any) -> bool:
    if row.topic == CLOCK or row.topic in planned.global_topics:
        return bool(row.part == part.group.id)
    return bool(planned.readers[row.topic] == part.group.id)


def _unpacked(batch: pa.RecordBatch) -> Iterable[Packed]:
    return (Packed(*row) for row in zip(*(c.to_pylist() for c in batch.columns), strict=True))


def _source(
    inputs: dict[str, list[tuple[bytes | None, bytes | None]]],
) -> Iterable[pa.RecordBatch]:
    for place, (topic, records) in enumerate(inputs.items()):
        many = len(records)
        times = [(10 * number + place) * 1000 for number in range(many)]  # 10 ms apart
        yield pa.record_batch(
            {
                "key": pa.array([key for key, _ in records], pa.binary()),
                "value": pa.array([value for _, value in records], pa.binary()),
                "topic": [topic] * many,
                "partition": pa.array([0] * many, pa.int32()),
                "offset": pa.array(range(many), pa.int64()),
                "timestamp": pa.array(times, pa.timestamp("us", tz="UTC")),
                "headers": pa.nulls(many, _HEADERS),
            }
        )
