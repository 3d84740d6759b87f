"""Helpers for tests of counts: an example, messages in a log, an independent model."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from thulawa.brokers.embedded import Log, ProducerRecord
from thulawa.brokers.port import open_broker
from thulawa.core.types import TopicPartition
from thulawa.health.changelog import CountsChangelog
from thulawa.health.counter import Added, Rule
from thulawa.health.counts import Cell, Count
from thulawa.health.tasks import CountRanges, Range, added_by

FIRST = 1501273548000
# one text for each window of each partition: v is valid, i is not
STORY = {0: ("vvviv", "vi", "ivv"), 1: ("vivv", "vvv", "iivv")}
# the eleven lines of the story, and the offset up to which each counts
LINES = {
    '{"topic":"tx","partition":0,"window":1501273548000,"status":"valid"}': (4, 5),
    '{"topic":"tx","partition":0,"window":1501273548000,"status":"invalid"}': (1, 4),
    '{"topic":"tx","partition":1,"window":1501273548000,"status":"valid"}': (3, 4),
    '{"topic":"tx","partition":1,"window":1501273548000,"status":"invalid"}': (1, 2),
    '{"topic":"tx","partition":0,"window":1501273549000,"status":"valid"}': (1, 6),
    '{"topic":"tx","partition":0,"window":1501273549000,"status":"invalid"}': (1, 7),
    '{"topic":"tx","partition":1,"window":1501273549000,"status":"valid"}': (3, 7),
    '{"topic":"tx","partition":0,"window":1501273550000,"status":"valid"}': (2, 10),
    '{"topic":"tx","partition":0,"window":1501273550000,"status":"invalid"}': (1, 8),
    '{"topic":"tx","partition":1,"window":1501273550000,"status":"valid"}': (2, 11),
    '{"topic":"tx","partition":1,"window":1501273550000,"status":"invalid"}': (2, 9),
}
SUMS = [(FIRST, 7, 2), (FIRST + 1000, 4, 1), (FIRST + 2000, 4, 3)]


def is_valid(value: bytes | None) -> bool:
    return value == b"v"


def story_messages() -> list[tuple[int, bytes, int]]:
    """Return partition, value and timestamp of each message of the example."""
    return [
        (partition, sign.encode(), FIRST + 1000 * place + 10 * at)
        for partition, windows in STORY.items()
        for place, signs in enumerate(windows)
        for at, sign in enumerate(signs)
    ]


def story(folder: Path) -> str:
    """Write the story's messages to a log; give its address."""
    address = f"file:{folder}/topics"
    with Log(address) as log:
        log.create_topic("tx", partitions=2)
        records = [ProducerRecord(None, v, (), time, p) for p, v, time in story_messages()]
        log.append({"tx": records})
    return address


def lines_of(log: Log, topic: str) -> dict[str, tuple[int, int]]:
    """Return the last value of each key of a topic, in the order of first occurrence."""
    import json  # noqa: PLC0415 the standard library's reads what ours wrote

    found: dict[str, bytes | None] = {}
    for partition in log.end_offsets(topic):
        for record in log.read(topic, partition, log.start_offsets(topic)[partition]):
            found[(record.key or b"").decode()] = record.value
    return {
        key: (json.loads(value)["value"], json.loads(value)["offset"])
        for key, value in found.items()
        if value is not None
    }


def counted(log: Log, ranges: Sequence[Range], rule: Rule) -> dict[TopicPartition, list[Added]]:
    """Count ranges as a task of Spark would."""
    import pyarrow as pa  # noqa: PLC0415

    task = CountRanges(open_broker(log.address), [ranges], rule)
    (batch,) = task([pa.record_batch({"id": pa.array([0])})])
    return added_by(batch)


def model(messages: Iterable[tuple[int, int, str]], window: int, expire: int) -> dict[Cell, int]:
    """Count (partition, timestamp, status) one by one, in order, and forget what has expired."""
    counts: Counter[Cell] = Counter()
    newest: dict[int, int] = {}
    for partition, time, status in messages:
        start = time // window * window
        newest[partition] = max(start, newest.get(partition, start))
        if newest[partition] - start <= expire:
            counts[Cell("tx", partition, start, status)] += 1
    return {
        cell: count
        for cell, count in counts.items()
        if newest[cell.partition or 0] - cell.window <= expire
    }


def written(
    changelog: CountsChangelog, place: TopicPartition, counts: Sequence[Count], now: int = 1
) -> bool:
    """Write totals of a partition that was read up to the last of them."""
    end = max(count.offset for count in counts)
    return bool(changelog.write({place: counts}, now, {place: end}))


def values(counts: Iterable[Count]) -> dict[Cell, int | None]:
    return {count.cell: count.value for count in counts}
