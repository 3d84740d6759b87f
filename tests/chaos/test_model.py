"""The model of the chaos run, and tasks without Spark that fail far more often than under kills."""

import json
import random
from collections import Counter, defaultdict
from typing import Any

from tests.chaos.application import build
from tests.chaos.model import Batch, expected
from tests.chaos.workload import PARTITIONS, TOPICS, Workload
from tests.spark.dry import DryQuery, Input
from thulawa.brokers.embedded import ConsumerRecord
from thulawa.core.partitioning import partition_of


def test_tasks_with_failed_attempts_and_lost_workers_have_the_output_of_the_model() -> None:
    draw = random.Random()
    seed = draw.randrange(2**32)
    draw.seed(seed)
    topics = _partitions(Workload(records=4_000, keys=150, seed=seed))
    query = DryQuery(build(), dict.fromkeys(TOPICS, PARTITIONS))
    done = {(topic, number): 0 for topic in TOPICS for number in range(PARTITIONS)}
    batches: list[Batch] = []
    rows: list[dict[str, Any]] = []
    while any(done[topic, number] < len(topics[topic][number]) for topic, number in done):
        ends = {partition: at + draw.randrange(120) for partition, at in done.items()}
        inputs = {
            (topic, number): [
                Input(one.offset, one.timestamp, one.key, one.value)
                for one in topics[topic][number][at : ends[topic, number]]
            ]
            for (topic, number), at in done.items()
        }
        while draw.random() < 0.5:
            query.attempt(inputs)  # fails: its state is discarded
            if draw.random() < 0.5:
                query.restart()
        rows += query.batch(inputs)
        done = ends
        batches.append(Batch({t: {n: ends[t, n] for n in range(PARTITIONS)} for t in TOPICS}))
    model = expected(topics, batches)
    for topic, output in model.outputs.items():
        found: dict[str, list[tuple[Any, int]]] = defaultdict(list)
        for row in rows:
            if row["topic"] == topic:
                time = round(row["timestamp"].timestamp() * 1000)
                found[row["key"].decode()].append((json.loads(row["value"]), time))
        assert found == output, f"seed {seed}: {topic}"
    counts = Counter(row["key"].decode() for row in rows if row["topic"] == "item-counts")
    assert counts == model.per_item, f"seed {seed}"


def _partitions(workload: Workload) -> dict[str, list[list[ConsumerRecord]]]:
    """Return the records of each partition with the offsets that a log would assign."""
    topics: dict[str, list[list[ConsumerRecord]]] = {}
    for topic, records in workload.topics().items():
        parts: list[list[ConsumerRecord]] = [[] for _ in range(PARTITIONS)]
        for one in records:
            number = partition_of(one.key, PARTITIONS)
            offset = len(parts[number])
            parts[number].append(
                ConsumerRecord(topic, number, offset, one.timestamp or 0, one.key, one.value, ())
            )
        topics[topic] = parts
    return topics


def record(topic: str, number: int, time: int) -> ConsumerRecord:
    value = b'{"id": %d, "item": "i"}' % number
    return ConsumerRecord(topic, 0, 0, time, b"c", value, ())


def test_the_output_of_the_model_shows_a_lost_and_a_duplicated_record() -> None:
    orders = [record("orders", number, number * 10) for number in range(3)]
    topics: dict[str, list[list[ConsumerRecord]]] = {
        "orders": [orders],
        "payments": [[]],
        "profiles": [[]],
    }
    model = expected(topics, [Batch({"orders": {0: 2}}), Batch({"orders": {0: 3}})])
    assert model.per_item == {"i": 3}
    assert model.outputs["window-counts"] == {"c@0": [(1, 0), (2, 10), (3, 20)]}
    assert model.outputs["enriched"] == {"c": [([0, None], 0), ([1, None], 10), ([2, None], 20)]}
    fewer = expected({**topics, "orders": [orders[:2]]}, [Batch({"orders": {0: 2}})])
    twice = expected({**topics, "orders": [[*orders, orders[0]]]}, [Batch({"orders": {0: 4}})])
    assert model.outputs not in (fewer.outputs, twice.outputs)


def test_the_model_joins_orders_and_payments_and_emits_unmatched_orders_after_the_grace() -> None:
    orders = [record("orders", 0, 1_000), record("orders", 1, 9_000), record("orders", 2, 99_000)]
    payments = [record("payments", 7, 2_500)]
    topics: dict[str, list[list[ConsumerRecord]]] = {
        "orders": [orders],
        "payments": [payments],
        "profiles": [[]],
    }
    model = expected(topics, [Batch({"orders": {0: 3}, "payments": {0: 1}})])
    assert model.outputs["paid"] == {"c": [([0, 7], 2_500), ([1, None], 9_000)]}


def test_the_model_holds_orders_back_while_another_topic_of_the_partition_has_more_records() -> (
    None
):
    topics: dict[str, list[list[ConsumerRecord]]] = {
        "orders": [[record("orders", 0, 1_000)]],
        "payments": [[]],
        "profiles": [[record("profiles", 8, 400), record("profiles", 9, 500)]],
    }
    first = Batch({"orders": {0: 1}, "profiles": {0: 1}}, frozenset({("profiles", 0)}))
    assert expected(topics, [first]).outputs["enriched"] == {}
    both = expected(topics, [first, Batch({"orders": {0: 1}, "profiles": {0: 2}})])
    assert both.outputs["enriched"] == {"c": [([0, 9], 1_000)]}
    not_held = expected(topics, [first._replace(more=frozenset())])
    assert not_held.outputs["enriched"] == {"c": [([0, 8], 1_000)]}
