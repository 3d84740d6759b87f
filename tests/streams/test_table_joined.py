"""Foreign-key joins of tables whose topics are partitioned in ways of their own."""

from typing import Any

import pytest

from tests.spark.dry import DryQuery, Input
from thulawa.errors import TopologyError
from thulawa.runtime.planning import plan
from thulawa.streams import Consumed, Serdes, StreamsBuilder, TableJoined, Topology
from thulawa.testing import TopologyTestDriver


def by_last_digit(key: int, value: object, partitions: int) -> int:
    assert value is None
    return key % 10 % partitions


def program(joined: TableJoined, **serdes: Any) -> Topology:
    builder = StreamsBuilder()
    orders = builder.table("orders", Consumed(**serdes))
    customers = builder.table("customers", Consumed(**serdes))
    table = orders.join(
        customers, lambda order, name: f"{order} {name}", foreign_key=int, named=joined
    )
    table.to_stream().to("out")
    return builder.build()


def test_subscriptions_are_partitioned_as_the_other_table_is() -> None:
    joined = TableJoined(name="by", partitioner=by_last_digit, other_partitioner=by_last_digit)
    topology = program(joined, key_serde=Serdes.long(), value_serde=Serdes.json())
    long = Serdes.long().dumps
    query = DryQuery(topology, {"orders": 4, "customers": 4})
    offset = iter(range(1_000))

    def at(topic: str, key: int, value: bytes) -> dict[Any, Any]:
        place = topic, by_last_digit(key, None, 4)
        return {place: [Input(next(offset), 0, long(key), value)]}

    found = []
    batches = [at("customers", 27, b'"Ann"'), at("orders", 103, b"27"), {}, {}]
    for _ in range(4):
        rows = query.batch(batches.pop(0))
        found += [row["value"] for row in rows if row["topic"] == "out"]
        for row in rows:
            if row["topic"] != "out":
                answer = Input(next(offset), 0, row["key"], row["value"])
                batches[0].setdefault((row["topic"], row["partition"]), []).append(answer)
    assert found == [b'"27 Ann"']


def test_serdes_of_the_join_are_those_of_the_keys_where_tables_have_none() -> None:
    long, short = Serdes.long(), Serdes.json()
    joined = TableJoined(name="by", key_serde=short, other_key_serde=long)
    counts = {"orders": 2, "customers": 2}
    with pytest.raises(TopologyError, match="'customers' as text"):
        plan(program(joined), counts)
    planned = plan(program(joined), counts, key_serde=Serdes.long())
    assert planned.repartitions["by-subscription-registration-topic"].key_serde is long
    assert planned.repartitions["by-subscription-response-topic"].key_serde is short


@pytest.mark.parametrize("partitions", [1, 4])
def test_they_run_in_the_test_driver(partitions: int) -> None:
    joined = TableJoined(key_serde=Serdes.json(), other_key_serde=Serdes.json())
    topology = program(joined, key_serde=Serdes.long())
    with TopologyTestDriver(topology, partitions=partitions) as driver:
        customers, orders = map(driver.create_input_topic, ("customers", "orders"))
        customers.pipe_key_value_list([(n, f"c{n}") for n in range(9)])
        orders.pipe_key_value_list([(n, str(n % 9)) for n in range(20)])
        out = driver.create_output_topic("out").read_values_to_list()
        assert sorted(out) == sorted(f"{n % 9} c{n % 9}" for n in range(20))


def test_a_partitioner_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(TopologyError, match="partitioner needs a function of"):
        program(TableJoined(other_partitioner=lambda key: 0))
