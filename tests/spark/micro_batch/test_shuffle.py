"""What a program sends from one stage to the next, without a query around it."""

from collections.abc import Iterator

from thulawa.brokers.embedded.batches import Columns
from thulawa.runtime.planning import plan
from thulawa.runtime.task_options import TaskOptions
from thulawa.spark.connectors.chunks import Chunk
from thulawa.spark.micro_batch.first_stage import run_first_stage
from thulawa.spark.micro_batch.program import Program
from thulawa.spark.micro_batch.program_shipping import ShippedProgram
from thulawa.state.codec import ColumnCodec
from thulawa.streams import Grouped, Materialized, StreamsBuilder

RECORDS, PAGES, CHUNK = 100_000, 1_000, 25_000


def visits() -> Iterator[Chunk]:
    """Visits as a source gives them: who came, and which page was seen."""
    for start in range(0, RECORDS, CHUNK):
        offsets = range(start, start + CHUNK)
        keys = [b"visitor %d" % (n * 31 % 9_973) for n in offsets]
        values = [b'{"page":"/p/%d","ms":120}' % (n * 7 % PAGES) for n in offsets]
        columns = Columns(offsets, [n // 1_000 for n in offsets], keys, values, [()] * CHUNK)
        yield Chunk("visits", 0, start, columns)


def sent(*, two_step: bool) -> tuple[int, int]:
    """Return the number of records and bytes that a batch of visits sends through the shuffle."""
    builder = StreamsBuilder()
    pages = builder.stream("visits").group_by(
        lambda _, visit: visit["page"], Grouped(two_step=two_step)
    )
    pages.count(Materialized.as_("views")).to_stream().to("out")
    planned = plan(builder.build(), {"visits": 1})
    program = Program("app", f"app/{two_step}", planned, TaskOptions(commit="batch"))
    packed = [
        data
        for batch in run_first_stage(ShippedProgram(program), visits())
        for data in batch.column("data").to_pylist()
    ]
    return sum(len(ColumnCodec().decode(data)) for data in packed), sum(map(len, packed))


def test_two_steps_shuffle_parts_and_not_records() -> None:
    records, size = sent(two_step=False)
    parts, size_of_parts = sent(two_step=True)
    assert records == RECORDS
    assert parts <= 4 * PAGES  # one for each of four chunks
    assert size_of_parts < size / 20
