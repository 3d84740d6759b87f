"""Records per batch follow what batches take, in a query that runs."""

import time
from pathlib import Path
from typing import Any

import pytest

from thulawa.brokers.embedded import Log, ProducerRecord
from thulawa.runtime.batch_size import AdaptiveBatchSize, BatchSizeEstimator
from thulawa.spark.application import Streams
from thulawa.spark.micro_batch.runner import BatchSizeController
from thulawa.streams.streams_builder import StreamsBuilder


@pytest.mark.timeout(600)
def test_batches_of_a_running_query_grow_until_a_bound_binds(tmp_path: Path, spark: Any) -> None:
    address = f"file:{tmp_path / 'topics'}"
    with Log(address) as log:
        log.create_topic("in")
        log.append({"in": [ProducerRecord(b"k", b"1") for _ in range(400)]})
    builder = StreamsBuilder()
    builder.stream("in").map_values(lambda value: value + 1).to("out")
    # more time than any batch takes: only the bound can stop it
    bounds = AdaptiveBatchSize(least=1, first=10, most=40, seconds=3_600)
    with Streams(
        builder.build(), application_id="app", log=address, checkpoint=str(tmp_path / "cp"),
        spark=spark, max_records=bounds,
    ) as streams:  # fmt: skip
        assert streams.lag()["in"][0] > 0, "what waits is known before there is a batch"
        streams.process_all_available("9 minutes")
        assert streams.lag() == {"in": {0: 0}}
        deadline = time.monotonic() + 60
        while not _reported(streams, 400) and time.monotonic() < deadline:
            time.sleep(0.05)  # a report comes a moment after its batch
        told = streams.batch_size()
        sizes = [report["records"] for report in streams.progress() if report["records"]]
    assert told is not None
    assert told.limit == 40
    assert sum(sizes) == 400
    assert sizes[0] == 10
    assert max(sizes) == 40


def _reported(streams: Streams, records: int) -> bool:
    return sum(int(report["records"]) for report in streams.progress()) == records


def test_a_spark_that_keeps_limits_otherwise_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[int] = []

    def refuses(limit: int) -> bool:
        asked.append(limit)
        return False

    control = BatchSizeEstimator(AdaptiveBatchSize(least=1, first=10, most=1_000))
    controller = BatchSizeController("geo", control, refuses)
    for number in (0, 0, 1, 2):
        offsets = [{"in": {"0": number * 10 + more}} for more in (0, 10, 99)]
        source = dict(zip(("startOffset", "endOffset", "latestOffset"), offsets, strict=True))
        controller.update(
            {"batchId": number, "sources": [source], "durationMs": {"triggerExecution": 1}}
        )
    assert asked == [20]
    assert (controller.statistics.limit, controller.statistics.records) == (20, 10)
    assert "does not let the limit change" in caplog.text
