"""Topics between sub-topologies over edits: none of their records is lost, none is read twice."""

import json
from pathlib import Path
from typing import Any

import pytest

from thulawa.brokers.embedded import Log, ProducerRecord
from thulawa.errors import StateError
from thulawa.runtime.planning import plan
from thulawa.spark.micro_batch.application_topics import prepare_internal_topics
from thulawa.spark.micro_batch.brokers import streams_broker
from thulawa.spark.micro_batch.checkpoint import Checkpoint
from thulawa.spark.micro_batch.program import Program
from thulawa.streams import Grouped, Materialized, StreamsBuilder, deterministic

TOPIC = "app-pages-repartition"
ENDS = {TOPIC: {0: 3, 1: 0}}


class Application:
    """An application without Spark: its topics, its checkpoint, what its batches have read."""

    def __init__(self, folder: Path) -> None:
        self.topics = streams_broker(f"file:{folder / 'topics'}")
        self.checkpoint = Checkpoint(str(folder / "checkpoint"))

    def accept(self, made: Program) -> None:
        for repartition in made.plan.repartitions.values():
            if repartition.is_topic:
                self.topics.create(f"app-{repartition.topic}", 2, unlimited=True)
        starts = self.prepare(made)
        self.checkpoint.accept(made, allow_state_loss=True, starts=starts)

    def prepare(self, made: Program, *, allow_state_loss: bool = False) -> Any:
        return prepare_internal_topics(
            made, self.topics, self.checkpoint, allow_state_loss=allow_state_loss
        )

    def fill(self) -> None:
        with Log(self.topics.broker.address) as log:
            log.append({TOPIC: [ProducerRecord(b"k", b"v", (), 1, 0)] * 3})

    def batch(self, number: int, offsets: Any, *, committed: bool) -> None:
        query = Path(self.checkpoint.query_path)
        for name in ("offsets", "commits") if committed else ("offsets",):
            (query / name).mkdir(parents=True, exist_ok=True)
            (query / name / str(number)).write_text(f"v1\n{{}}\n{json.dumps(offsets)}")


@pytest.fixture
def app(tmp_path: Path) -> Application:
    return Application(tmp_path)


def program(*, durable: bool, name: str = "pages") -> Program:
    builder = StreamsBuilder()
    known = deterministic(lambda key, value: str(value))
    unknown = lambda key, value, by=str: by(value)  # noqa: E731 a pair
    grouped = builder.stream("in").group_by(unknown if durable else known, Grouped(name=name))
    grouped.count(Materialized.as_("views")).to_stream().to("out")
    return Program("app", "app/1", plan(builder.build(), {"in": 2}))


def test_a_first_start_leaves_out_what_an_earlier_run_has_left(app: Application) -> None:
    app.topics.create(TOPIC, 2)
    app.fill()
    made = program(durable=True)
    assert app.prepare(made) == ENDS
    app.accept(made)
    assert app.checkpoint.starts() == ENDS
    app.fill()  # the first batch was cut off and runs again: what it wrote is not left out
    assert app.prepare(made) == {}
    app.accept(made)
    assert app.checkpoint.starts() == ENDS


def test_a_topic_of_another_size_is_refused(app: Application) -> None:
    app.topics.create(TOPIC, 3)
    with pytest.raises(StateError, match=f"{TOPIC}' has 3 partitions, and the program needs 2"):
        app.prepare(program(durable=True))


@pytest.mark.parametrize("edited", [program(durable=True, name="clicks")], ids=["renamed"])
def test_unread_records_of_a_topic_that_is_gone_are_not_lost(
    app: Application, edited: Program
) -> None:
    app.accept(program(durable=True))
    app.fill()
    app.batch(0, {TOPIC: {"0": 1, "1": 0}}, committed=True)
    with pytest.raises(StateError, match=f"{TOPIC}' holds 2 records"):
        app.prepare(edited)
    assert app.prepare(edited, allow_state_loss=True) == {}
    app.batch(1, {TOPIC: {"0": 3, "1": 0}}, committed=True)
    assert app.prepare(edited) == {}


def test_a_shuffle_becomes_a_topic_between_two_batches_only(app: Application) -> None:
    app.accept(program(durable=False))
    app.batch(0, {"in": {"0": 1, "1": 0}}, committed=True)
    app.batch(1, {"in": {"0": 2, "1": 0}}, committed=False)
    with pytest.raises(StateError, match="the last batch is not committed"):
        app.prepare(program(durable=True))
    app.batch(1, {"in": {"0": 2, "1": 0}}, committed=True)
    app.topics.create(TOPIC, 2)
    app.fill()  # it was a topic once
    app.prepare(program(durable=True))
    assert app.topics.broker.start_offsets(TOPIC) == ENDS


def test_a_topic_stays_one_when_its_functions_are_declared(app: Application) -> None:
    app.accept(program(durable=True))
    assert app.checkpoint.assignment().durable == {"pages-repartition"}
    assert app.checkpoint.internal_topics() == {TOPIC}


def test_a_checkpoint_of_before_knows_its_inner_topics_by_what_was_read(app: Application) -> None:
    app.accept(program(durable=True))
    file = app.checkpoint.root / "application.json"
    written = json.loads(file.read_text())
    del written["inner_topics"], written["durable"]
    file.write_text(json.dumps(written))
    assert app.checkpoint.internal_topics() == set()
    app.batch(0, {"in": {"0": 1}, TOPIC: {"0": 0, "1": 0}}, committed=True)
    assert app.checkpoint.internal_topics() == {TOPIC}
