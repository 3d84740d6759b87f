"""Tables by transformers that keep something."""

from typing import Any

import pytest

from thulawa.errors import (
    ProcessingError,
    TopologyError,
)
from thulawa.streams import (
    Materialized,
    StoreSpec,
    StreamsBuilder,
    ValueTransformer,
    ValueTransformerContext,
)
from thulawa.testing import TopologyTestDriver


class Numbered(ValueTransformer[str, str, str]):
    """Gives every row the number of changes it has seen."""

    closed = 0

    def init(self, context: ValueTransformerContext[str, str]) -> None:
        super().init(context)
        self.changes = context.state_store("changes")

    def transform(self, key: str, value: str | None) -> str | None:
        self.changes.put(key, (self.changes.get(key) or 0) + 1)
        return None if value is None else f"{value} {self.changes.get(key)}"

    def close(self) -> None:
        Numbered.closed += 1


def numbered(builder: StreamsBuilder) -> Any:
    builder.add_state_store(StoreSpec(name="changes"))
    return builder.table("in").transform_values(Numbered, Materialized.as_("rows"), "changes")


def test_a_transformer_uses_its_stores_and_is_told_of_rows_that_go() -> None:
    builder = StreamsBuilder()
    numbered(builder).to_stream().to("out")
    Numbered.closed = 0
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in")
        topic.pipe_key_value_list([("a", "x"), ("a", None), ("b", "x")])
        driver.restart()
        topic.pipe_input("a", "y")
        assert driver.create_output_topic("out").read_key_values_to_list() == [
            ("a", "x 1"),
            ("a", None),
            ("b", "x 1"),
            ("a", "y 3"),
        ]
        assert dict(driver.get_key_value_store("changes").all()) == {"a": 3, "b": 1}
    assert Numbered.closed == 2


def test_what_follows_sees_the_row_before_and_no_row_is_computed_twice() -> None:
    builder = StreamsBuilder()
    table = numbered(builder)
    table.group_by(lambda k, v: (v[-1], v)).count().to_stream().to("out")
    builder.stream("asked").join(table, lambda a, row: row).to("answers")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in")
        topic.pipe_key_value_list([("a", "x"), ("a", "y")])
        driver.create_input_topic("asked").pipe_input("a", "?")
        assert driver.create_output_topic("answers").read_value() == "y 2"
        counts = driver.create_output_topic("out").read_key_values_to_list()
        assert counts == [("1", 1), ("1", 0), ("2", 1)]


def test_its_stores_must_be_there() -> None:
    builder = StreamsBuilder()
    with pytest.raises(TopologyError, match="no store 'nowhere'"):
        builder.table("in").transform_values(Numbered, Materialized.as_("rows"), "nowhere")
    builder.table("in").transform_values(Numbered, Materialized.as_("rows"))
    with pytest.raises(ProcessingError, match="not connected"):
        TopologyTestDriver(builder.build())


class Timed(ValueTransformer[str, str, str]):
    """Add the row's timestamp to each row."""

    def __init__(self, calls: list[Any] | None = None) -> None:
        self.calls = [] if calls is None else calls

    def transform(self, key: str, value: str | None) -> str | None:
        self.calls.append(value)
        return None if value is None else f"{value}@{self.context.timestamp}"


@pytest.mark.parametrize("kept", [False, True])
def test_a_transformer_sees_the_timestamp_of_its_row(kept: bool) -> None:  # noqa: FBT001
    builder = StreamsBuilder()
    materialized: Any = Materialized.as_("rows") if kept else None
    builder.table("in").transform_values(Timed, materialized).to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in")
        topic.pipe_input("a", "x", 7)
        topic.pipe_input("b", "y", 3)
        topic.pipe_input("a", None, 9)
        assert driver.create_output_topic("out").read_values_to_list() == ["x@7", "y@3", None]


def test_a_function_may_make_the_transformer_and_its_table_needs_no_store() -> None:
    calls: list[Any] = []
    builder = StreamsBuilder()
    builder.table("in").transform_values(lambda: Timed(calls)).to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in")
        topic.pipe_key_value_list([("a", "x"), ("a", "y"), ("a", None)])
        assert driver.create_output_topic("out").read_values_to_list() == ["x@0", "y@0", None]
    assert calls == ["x", "y", None]  # nobody needs old rows


@pytest.mark.parametrize("partitions", [1, 4])
def test_joins_and_groups_see_what_a_transformer_without_a_store_gives(partitions: int) -> None:
    builder = StreamsBuilder()
    table = builder.table("in").transform_values(Timed)
    builder.stream("asked").left_join(table, lambda a, row: row).to("answers")
    table.group_by(lambda k, v: (v[-1], v)).count().to_stream().to("counts")
    with TopologyTestDriver(builder.build(), partitions=partitions) as driver:
        topic = driver.create_input_topic("in")
        topic.pipe_input("a", "x", 1)
        topic.pipe_input("a", "y", 2)
        asked = driver.create_input_topic("asked")
        asked.pipe_input("a", "?", 5)
        driver.restart()
        asked.pipe_input("b", "?", 5)
        asked.pipe_input("a", "?", 6)
        answers = driver.create_output_topic("answers").read_values_to_list()
        assert answers == ["y@2", None, "y@2"]
        counts = driver.create_output_topic("counts").read_key_values_to_list()
        # the row before is made again, with the time of the update, as in Kafka
        assert counts == [("1", 1), ("2", 1)]


@pytest.mark.parametrize("use", ["forward", "schedule"])
def test_a_transformer_is_called_for_rows_and_gives_rows(use: str) -> None:
    class Misled(ValueTransformer[Any, Any, Any]):
        def transform(self, key: Any, value: Any) -> Any:
            return getattr(self.context, use)

    builder = StreamsBuilder()
    builder.table("in").transform_values(Misled, Materialized.as_("rows"))
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in")
        with pytest.raises(ProcessingError, match=f"cannot {use}"):
            topic.pipe_input("a", 1)
