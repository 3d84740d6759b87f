"""Foreign-key joins in batches, over several partitions, against a plain model."""

import json
import random
from collections import defaultdict
from typing import Any

import pytest

from tests.spark.dry import DryQuery, Input
from thulawa.core.partitioning import partition_of
from thulawa.streams import StreamsBuilder, Topology
from thulawa.testing import seeds

Update = tuple[str, str, Any]  # topic, key, value


def order(customer: str | None, amount: int = 0) -> Any:
    return {"customer": customer, "amount": amount}


def program(*, left: bool) -> Topology:
    builder = StreamsBuilder()
    orders, customers = builder.table("orders"), builder.table("customers")
    join = orders.left_join if left else orders.join
    joined = join(customers, lambda a, b: [a, b], foreign_key=lambda order: order["customer"])
    joined.to_stream().to("out")
    return builder.build()


class Joined:
    """The program in batches; what one batch answers comes with the next."""

    def __init__(self, *, left: bool, partitions: int) -> None:
        self._partitions = partitions
        topics = dict.fromkeys(("orders", "customers"), partitions)
        self._query = DryQuery(program(left=left), topics)
        self._offsets: dict[tuple[str, int], int] = defaultdict(int)
        self._answers: dict[tuple[str, int], list[Input]] = {}
        self.results: dict[str, Any] = {}

    def batch(self, updates: list[Update]) -> None:
        inputs, self._answers = self._answers, {}
        for time, (topic, key, value) in enumerate(updates):
            partition = partition_of(key.encode(), self._partitions)
            data = None if value is None else json.dumps(value).encode()
            self._add(inputs, topic, partition, time, key.encode(), data)
        for row in self._query.batch(inputs):
            if row["topic"] == "out":
                self._note(row["key"].decode(), row["value"])
            else:
                at, key, value = row["partition"], row["key"], row["value"]
                self._add(self._answers, row["topic"], at, 0, key, value, row["headers"])

    def settle(self) -> None:
        while self._answers:
            self.batch([])

    def restart(self) -> None:
        self._query.restart()

    def _note(self, key: str, value: bytes | None) -> None:
        if value is None:
            assert key in self.results, f"a tombstone for {key}, which has no result"
            del self.results[key]
        else:
            self.results[key] = json.loads(value)

    def _add(
        self,
        inputs: dict[Any, Any],
        topic: str,
        partition: int,
        time: int,
        *record: Any,
    ) -> None:
        place = topic, partition
        inputs.setdefault(place, []).append(Input(self._offsets[place], time, *record))
        self._offsets[place] += 1


def expected(updates: list[Update], *, left: bool) -> dict[str, Any]:
    tables: dict[str, dict[str, Any]] = {"orders": {}, "customers": {}}
    for topic, key, value in updates:
        tables[topic][key] = value
    customers = {key: row for key, row in tables["customers"].items() if row is not None}
    return {
        key: [row, customers.get(row["customer"])]
        for key, row in tables["orders"].items()
        if row is not None and (left or row["customer"] in customers)
    }


def random_update(chance: random.Random) -> Update:
    if chance.random() < 0.3:
        customer = None if chance.random() < 0.4 else chance.randrange(5)
        return "customers", chance.choice("ABC"), customer
    row = order(chance.choice(["A", "B", "C", "D", None]), chance.randrange(3))
    return "orders", chance.choice("uvwxyz"), None if chance.random() < 0.3 else row


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.parametrize("seed", seeds(40))
def test_no_stale_row_remains(seed: int, partitions: int, left: bool) -> None:  # noqa: FBT001
    chance = random.Random(seed)
    joined, all_updates = Joined(left=left, partitions=partitions), []
    for _ in range(8):
        updates = [random_update(chance) for _ in range(chance.randrange(1, 12))]
        all_updates += updates
        joined.batch(updates)
        if chance.random() < 0.3:
            joined.settle()
            assert joined.results == expected(all_updates, left=left)
        if chance.random() < 0.3:
            joined.restart()
    joined.settle()
    assert joined.results == expected(all_updates, left=left)


@pytest.mark.parametrize(
    "updates",
    [
        pytest.param(
            [("orders", "o", None), ("orders", "o", order("B"))], id="delete and insert again"
        ),
        pytest.param(
            [("orders", "o", order(None)), ("orders", "o", order(None, 1))], id="no key, twice"
        ),
        pytest.param(
            [("orders", "o", order(None)), ("orders", "o", None)], id="no key, then deleted"
        ),
        pytest.param(
            [("customers", "A", None), ("orders", "o", order("A", 1))], id="other side deleted"
        ),
    ],
)
def test_two_updates_in_one_batch_leave_no_old_result(updates: list[Update]) -> None:
    joined = Joined(left=False, partitions=1)
    joined.batch([("customers", "A", 1), ("orders", "o", order("A"))])
    joined.settle()
    assert joined.results == {"o": [order("A"), 1]}
    joined.batch(updates)
    joined.settle()
    assert joined.results == {}
