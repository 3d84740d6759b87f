"""What a program sends from one stage to the next, without a query around it."""

import pyarrow as pa

from thulawa.dsl import Grouped, Materialized, StreamsBuilder
from thulawa.runtime.options import TaskOptions
from thulawa.runtime.planning import plan
from thulawa.spark.streams.front import front
from thulawa.spark.streams.program import Program
from thulawa.spark.streams.shipping import Shipped
from thulawa.spark.streams.wire import unpack_records
from thulawa.state.codec import Codec

RECORDS, PAGES = 100_000, 1_000


def visits() -> pa.RecordBatch:
    """Visits as the log's source gives them: who came, and which page was seen."""
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return pa.record_batch(
        {
            "key": [b"visitor %d" % (n * 31 % 9_973) for n in range(RECORDS)],
            "value": [b'{"page":"/p/%d","ms":120}' % (n * 7 % PAGES) for n in range(RECORDS)],
            "topic": ["visits"] * RECORDS,
            "partition": pa.array([0] * RECORDS, pa.int32()),
            "offset": pa.array(range(RECORDS), pa.int64()),
            "timestamp": pa.array(range(RECORDS), pa.timestamp("us", tz="UTC")),
            "headers": pa.nulls(RECORDS, headers),
        }
    )


def sent(*, two_step: bool) -> tuple[int, int]:
    """Give how many records, and bytes, a batch of visits sends through the shuffle."""
    builder = StreamsBuilder()
    pages = builder.stream("visits").group_by(
        lambda _, visit: visit["page"], Grouped(two_step=two_step)
    )
    pages.count(Materialized.as_("views")).to_stream().to("out")
    planned = plan(builder.build(), {"visits": 1})
    program = Program("app", f"app/{two_step}", planned, TaskOptions(commit="batch"))
    packed = [
        data
        for batch in front(
            Shipped(program), iter(visits().slice(at, 10_000) for at in range(0, RECORDS, 10_000))
        )
        for data in batch.column("data").to_pylist()
    ]
    return sum(len(unpack_records(data, Codec())) for data in packed), sum(map(len, packed))


def test_two_steps_shuffle_parts_and_not_records() -> None:
    records, size = sent(two_step=False)
    parts, size_of_parts = sent(two_step=True)
    assert records == RECORDS
    assert parts <= 4 * PAGES  # the front takes about 25,000 records at a time
    assert size_of_parts < size / 20
