"""A serde of the user's own may write null."""

from typing import Any

from tests.spark.dry import DryQuery, Input
from thulawa.core.serdes import Serde
from thulawa.streams import Produced, Serdes, StreamsBuilder, Topology
from thulawa.testing import TopologyTestDriver

OR_GONE: Serde[Any] = Serde(
    "text or gone", lambda value: None if value == "gone" else value.encode(), bytes.decode
)


def program() -> Topology:
    builder = StreamsBuilder()
    produced = Produced(key_serde=Serdes.string(), value_serde=OR_GONE)
    builder.stream("in").to("out", produced)
    return builder.build()


def test_a_serde_that_returns_none_writes_null() -> None:
    with TopologyTestDriver(program()) as driver:
        driver.create_input_topic("in").pipe_key_value_list([("a", "x"), ("a", "gone"), ("b", "y")])
        out = driver.create_output_topic("out").read_key_values_to_list()
        assert out == [("a", "x"), ("a", None), ("b", "y")]


def test_so_it_does_on_spark() -> None:
    query = DryQuery(program(), {"in": 1})
    values = [b'"x"', b'"gone"', None]
    rows = query.batch({("in", 0): [Input(n, n, b"a", value) for n, value in enumerate(values)]})
    assert [row["value"] for row in rows] == [b"x", None, None]
