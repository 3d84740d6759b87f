"""What an application leaves behind is named in full, whatever it was run with; no Spark here."""

from pathlib import Path

from thulawa.brokers.embedded import Log
from thulawa.runtime.task_options import TaskOptions
from thulawa.spark.application import Streams
from thulawa.streams import Processor, Record, Repartitioned, StreamsBuilder


class Passing(Processor[str, int, str, int]):
    """Sends on what it gets."""

    def process(self, record: Record[str, int]) -> None:
        self.context.forward(record)


def streams(folder: Path, builder: StreamsBuilder, options: TaskOptions | None = None) -> Streams:
    """Give an application that has got as far as its topics; each has two partitions."""
    address = f"file:{folder}/topics"
    with Log(address) as log:
        for topic in ("orders", "names"):
            log.create_topic(topic, partitions=2)
    made = Streams(
        builder.build(),
        application_id="app",
        log=address,
        checkpoint=str(folder / "checkpoint"),
        options=options,
    )
    made._prepare_program()  # a start would need Spark
    return made


def test_a_repartition_that_meets_a_table_is_no_hindrance(tmp_path: Path) -> None:
    builder = StreamsBuilder()
    by_value = builder.stream("orders").select_key(lambda _, value: value)
    by_value.join(builder.table("names"), lambda order, _: order).to("out")
    assert streams(tmp_path, builder).owned_resources() == (tmp_path / "checkpoint", [])


def test_a_repartition_of_a_size_of_its_own_is_no_hindrance(tmp_path: Path) -> None:
    builder = StreamsBuilder()
    sized = builder.stream("orders").repartition(Repartitioned(partitions=2))
    sized.join(builder.table("names"), lambda order, _: order).to("out")
    assert streams(tmp_path, builder).owned_resources() == (tmp_path / "checkpoint", [])


def test_the_topic_of_the_clock_remains(tmp_path: Path) -> None:
    builder = StreamsBuilder()
    builder.stream("orders").process(Passing).to("out")
    assert streams(tmp_path, builder).owned_resources()[1] == ["app-clock"]


def test_the_topic_of_the_clock_remains_of_tasks_that_wait(tmp_path: Path) -> None:
    builder = StreamsBuilder()
    builder.stream("orders").to("out")
    made = streams(tmp_path, builder, TaskOptions(max_task_idle="1 s"))
    assert made.owned_resources()[1] == ["app-clock"]
