"""The test driver's own promises: what is piped, what is read, which stores there are."""

from typing import Any

import pytest

from thulawa.errors import ConfigurationError
from thulawa.state.stores import KeyValueStore
from thulawa.streams import Materialized, Record, StreamsBuilder
from thulawa.testing import TopologyTestDriver


@pytest.fixture
def echo() -> StreamsBuilder:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    return builder


def test_a_record_is_piped_by_value_by_key_and_value_or_whole(echo: StreamsBuilder) -> None:
    with TopologyTestDriver(echo.build()) as driver:
        topic = driver.create_input_topic("in", start=100, auto_advance=10)
        topic.pipe_input("alone")
        topic.pipe_input("k", None)
        topic.pipe_input(Record("whole", 1, 7, (("h", b"1"),)))
        topic.pipe_value_list(["a", "b"], start=1000, advance="1 s")
        topic.pipe_input("k", "v", headers=(("h", b"2"),))
        assert driver.create_output_topic("out").read_records_to_list() == [
            Record(None, "alone", 100),
            Record("k", None, 110),
            Record("whole", 1, 7, (("h", b"1"),)),
            Record(None, "a", 1000),
            Record(None, "b", 2000),
            Record("k", "v", 120, (("h", b"2"),)),
        ]


def test_topics_that_were_written_to_are_named_also_when_read(echo: StreamsBuilder) -> None:
    with TopologyTestDriver(echo.build()) as driver:
        out = driver.create_output_topic("out")
        assert driver.produced_topic_names() == set()
        with pytest.raises(LookupError, match="no record in 'out': nothing was written"):
            out.read_record()
        driver.create_input_topic("in").pipe_input("v")
        out.read_record()
        assert driver.produced_topic_names() == {"out"}
        with pytest.raises(LookupError, match="all has been read"):
            out.read_record()


def test_all_stores_are_given_by_name() -> None:
    builder = StreamsBuilder()
    builder.global_table("rates", materialized=Materialized.as_("rates"))
    builder.stream("in").group_by_key().count(Materialized.as_("counts"))
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in").pipe_input("k", 1)
        stores = driver.get_all_state_stores()
        assert set(stores) == {"rates", "counts"}
        assert driver.get_state_store("counts") is stores["counts"]
        counts = stores["counts"]
        assert isinstance(counts, KeyValueStore)
        assert counts.get("k") == 1
        with pytest.raises(ConfigurationError, match="no SessionStore 'counts'"):
            driver.get_session_store("counts")
        with pytest.raises(ConfigurationError, match="no store 'nowhere'; stores are"):
            driver.get_state_store("nowhere")


def test_a_builder_is_no_topology(echo: Any) -> None:
    with pytest.raises(ConfigurationError, match="builder"):
        TopologyTestDriver(echo)
