"""Rows that failed for good: what a dead letter says, and that each is written once."""

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from thulawa.brokers.embedded import ConsumerRecord, Log
from thulawa.engine import Options
from thulawa.errors import ConfigurationError, StateError, ThulawaError, UnknownTopic
from thulawa.spark.map_by_key import worker
from thulawa.spark.map_by_key.api import map_by_key
from thulawa.spark.map_by_key.dead_letters import UNKNOWN, RowIdentity, dead_letter_topic
from thulawa.spark.map_by_key.operator import Operator
from thulawa.spark.task_context import SparkTask

QUERY = "0b0f2c1e-query"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log(f"file:{tmp_path / 'topics'}") as made:
        made.create_topic("dead")
        yield made


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> list[SparkTask | None]:
    """Give the place where a test says which task it is; the batch DataFrame's to begin with."""
    current: list[SparkTask | None] = [None]
    monkeypatch.setattr(worker, "current_task", lambda: current[0])
    return current


def arrow(rows: Sequence[dict[str, Any]], until: int | None) -> Iterator[pa.RecordBatch]:
    """Give several Arrow batches, as Spark sends them."""
    for start in range(0, len(rows), 50):
        if start == until:
            raise OSError("interrupted")
        yield pa.RecordBatch.from_pylist(list(rows[start : start + 50]))


def run(
    log: Log | None,
    function: Any,
    rows: Sequence[dict[str, Any]],
    until: int | None = None,
    **changes: Any,
) -> list[Any]:
    """Run an operator that sets failures aside; give what it lets through."""
    settings: dict[str, Any] = {
        "name": "locate",
        "function": function,
        "flat": False,
        "keys": ("key",),
        "returns": pa.schema([("answer", pa.int64())]),
        "keep": (),
        "options": Options(on_error="dead_letter"),
        "dead_letters": log and dead_letter_topic(f"{log.address}#dead"),
        "row_identity": RowIdentity("position", "plan"),
    }
    operator = Operator(**settings | changes)
    out = worker.process(operator, arrow(rows, until))
    return [answer for batch in out for answer in batch.column("answer").to_pylist()]


def numbers(count: int) -> list[dict[str, Any]]:
    return [{"key": f"k{number % 7}", "n": number} for number in range(count)]


def failing(*bad: int, calls: list[int] | None = None) -> Any:
    async def locate(row: Any) -> int:
        if calls is not None:
            calls.append(row.n)
        if row.n in bad:
            raise LookupError(f"no to {row.n}")
        return int(row.n)

    return locate


def letters(log: Log) -> list[ConsumerRecord]:
    return list(log.read("dead", 0, 0))


def set_aside(log: Log) -> list[int]:
    return [json.loads(letter.value or b"")["n"] for letter in letters(log)]


def test_a_dead_letter_has_the_key_the_row_and_what_happened(
    log: Log, task: list[SparkTask | None]
) -> None:
    task[0] = SparkTask(3)
    out = run(log, failing(60), numbers(100))
    assert sorted(out) == [number for number in range(100) if number != 60]
    (letter,) = letters(log)
    assert (letter.key, letter.value) == (b"k4", b'{"key": "k4", "n": 60}')
    headers = {name: (value or b"").decode() for name, value in letter.headers}
    assert "in locate" in headers.pop("__streams.errors.stacktrace")
    assert headers == {
        "thulawa.dead_letter": "60",
        "__streams.errors.exception": "LookupError",
        "__streams.errors.message": "no to 60",
        "__streams.errors.node": "locate",
        "__streams.errors.topic": "",
        "__streams.errors.partition": "3",
        "__streams.errors.offset": "60",
    }


def test_a_row_of_a_topic_says_where_it_stood(log: Log, task: list[SparkTask | None]) -> None:
    run(log, failing(1), [{"key": b"k", "n": 1, "topic": "visits", "partition": 5, "offset": 77}])
    headers = dict(letters(log)[0].headers)
    assert headers["__streams.errors.topic"] == b"visits"
    assert headers["__streams.errors.partition"] == b"5"
    assert headers["__streams.errors.offset"] == b"77"


def test_whatever_a_row_holds_can_be_set_aside(log: Log, task: list[SparkTask | None]) -> None:
    odd = {
        "key": 4,
        "n": 1,
        "nan": float("nan"),
        "raw": b"\xff\x00",
        "text": b"ok",
        "at": datetime(2026, 11, 16, tzinfo=UTC),
        "price": Decimal("1.50"),
        "nested": [{"deep": float("inf")}],
        "nothing": None,
    }
    run(log, failing(1), [odd])
    (letter,) = letters(log)
    assert letter.key == b"4"
    assert json.loads(letter.value or b"") == odd | {
        "nan": "nan",
        "raw": "/wA=",
        "text": "ok",
        "at": "2026-11-16T00:00:00+00:00",
        "price": "1.50",
        "nested": [{"deep": "inf"}],
    }


def test_a_result_that_does_not_fit_is_set_aside_with_all_rows_of_its_call(
    log: Log, task: list[SparkTask | None]
) -> None:
    async def spread(row: Any) -> list[Any]:
        return [row.n, "no number" if row.n == 7 else row.n]

    out = run(log, spread, numbers(10), flat=True)
    assert sorted(out) == sorted(2 * [number for number in range(10) if number != 7])
    assert set_aside(log) == [7]
    assert dict(letters(log)[0].headers)["__streams.errors.exception"] == b"WrongResult"


def test_a_batch_that_is_run_again_leaves_out_what_was_set_aside(
    log: Log, task: list[SparkTask | None]
) -> None:
    task[0] = SparkTask(0, QUERY, 4)
    run(log, failing(10, 20), numbers(100))
    calls: list[int] = []
    # 10 would succeed now, and 30 fails though it did not before
    out = run(log, failing(30, calls=calls), numbers(100))
    assert set_aside(log) == [10, 20, 30]
    assert sorted(out) == [number for number in range(100) if number not in (10, 20, 30)]
    assert not {10, 20} & set(calls)


@pytest.mark.parametrize("count", [1, 100])
def test_a_batch_of_which_nothing_is_left_gives_no_rows(
    log: Log, task: list[SparkTask | None], count: int
) -> None:
    task[0] = SparkTask(3)
    assert run(log, failing(*range(count)), numbers(count), keep=("n",)) == []
    assert sorted(set_aside(log)) == [*range(count)]
    silent: dict[str, Any] = {"flat": True, "keep": ("n",), "options": Options()}
    assert run(log, lambda row: [], numbers(count), dead_letters=None, **silent) == []


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("no \ud800"), r"no \ud800"),
        (Unreadable(), "Unreadable: its message cannot be read"),
    ],
)
def test_whatever_an_error_says_the_row_is_set_aside_or_marked(
    log: Log, task: list[SparkTask | None], error: Exception, message: str
) -> None:
    task[0] = SparkTask(3)

    def locate(row: Any) -> int:
        raise error

    assert run(log, locate, numbers(1)) == []
    (letter,) = letters(log)
    assert dict(letter.headers)["__streams.errors.message"] == message.encode()
    marked = Operator(
        name="locate", function=locate, flat=False, keys=("key",), keep=(),
        returns=pa.schema([("answer", pa.int64())]), options=Options(on_error="column"),
    )  # fmt: skip
    (batch,) = worker.process(marked, arrow(numbers(1), None))
    assert batch.column("_error").to_pylist()[0]["message"] == message


def of_topic(first: int, end: int) -> list[dict[str, Any]]:
    """Return rows of partition 0 and, from 50 on, of partition 1 of a topic."""
    return [
        {"key": f"k{n % 7}", "n": n, "topic": "in", "partition": n // 50, "offset": n % 50}
        for n in range(first, end)
    ]


def writer_of(log: Log) -> str:
    origin = dict(letters(log)[0].headers)["thulawa.dead_letter"] or b""
    return origin.decode().split("/")[1]


def test_rows_of_a_topic_are_known_again_in_whichever_task_they_are(
    log: Log, task: list[SparkTask | None]
) -> None:
    by_record = RowIdentity("record")
    task[0] = SparkTask(0, QUERY, 4)
    run(log, failing(10, 20), of_topic(0, 50), row_identity=by_record)
    task[0] = SparkTask(1, QUERY, 4)
    run(log, failing(70), of_topic(50, 100), row_identity=by_record)
    out, calls = [], list[int]()
    for number, some in ((0, of_topic(50, 100)), (1, of_topic(0, 50))):  # they have changed places
        task[0] = SparkTask(number, QUERY, 4)
        out += run(log, failing(30, calls=calls), some, row_identity=by_record)
    assert sorted(set_aside(log)) == [10, 20, 30, 70]
    assert sorted(out) == [number for number in range(100) if number not in (10, 20, 30, 70)]
    assert not {10, 20, 70} & set(calls)
    (since,) = {one.layout for one in log.markers(f"{QUERY}/{writer_of(log)}").values()}
    assert since == '{"0":0}', "letters are read back from where the batch began"
    with pytest.raises(ThulawaError, match="two rows come from the record in-0 at 3"):
        run(log, failing(), [*of_topic(0, 5), *of_topic(3, 4)], row_identity=by_record)


@pytest.mark.parametrize("again", [False, True])
def test_rows_of_one_record_in_two_tasks_are_refused_and_none_is_left_out(
    log: Log, task: list[SparkTask | None], *, again: bool
) -> None:
    """As behind an explode and a repartition: a letter of one would hide the other."""
    by_record = RowIdentity("record")
    (row,) = of_topic(3, 4)
    task[0] = SparkTask(0, QUERY, 4)
    run(log, failing(3), [row], row_identity=by_record)
    if again:  # and as it is when the batch is run again
        assert run(log, failing(), [row], row_identity=by_record) == []
    task[0] = SparkTask(1, QUERY, 4)
    with pytest.raises(ThulawaError, match="two rows come from the record in-0 at 3"):
        run(log, failing(), [row | {"key": "another"}], row_identity=by_record)


def test_rows_that_are_known_by_their_place_are_refused_when_the_plan_has_changed(
    log: Log, task: list[SparkTask | None]
) -> None:
    task[0] = SparkTask(0, QUERY, 4)
    run(log, failing(10), numbers(100))
    with pytest.raises(StateError, match=r"batch 4 with the tasks 'plan'.*again with 'edited'"):
        run(log, failing(10), numbers(100)[5:], row_identity=RowIdentity("position", "edited"))
    task[0] = SparkTask(0, QUERY, 5)
    run(log, failing(11), numbers(100), row_identity=RowIdentity("position", "edited"))
    assert set_aside(log) == [10, 11]


def test_rows_that_nothing_names_are_refused_in_a_streaming_query_alone(
    log: Log, task: list[SparkTask | None]
) -> None:
    run(log, failing(10), numbers(100), row_identity=UNKNOWN)
    task[0] = SparkTask(0, QUERY, 4)
    with pytest.raises(ConfigurationError, match="keep the columns topic, partition and offset"):
        run(log, failing(10), numbers(100), row_identity=UNKNOWN)


@pytest.mark.parametrize("by", ["record", "position"])
def test_dead_letters_of_an_older_checkpoint_are_refused(
    log: Log, task: list[SparkTask | None], by: Any
) -> None:
    task[0] = SparkTask(0, QUERY, 10)
    run(log, failing(10), of_topic(0, 50), row_identity=RowIdentity(by))
    task[0] = SparkTask(0 if by == "position" else 1, QUERY, 6)
    with pytest.raises(StateError, match=r"dead letters of locate has written batch 10.*batch 6"):
        run(log, failing(), of_topic(0, 50), row_identity=RowIdentity(by))


def test_batches_partitions_and_operators_do_not_hide_each_others_letters(
    log: Log, task: list[SparkTask | None]
) -> None:
    for current in (
        SparkTask(0, QUERY, 0),
        SparkTask(0, QUERY, 1),
        SparkTask(1, QUERY, 1),
        SparkTask(0, "other", 0),
    ):
        task[0] = current
        run(log, failing(3), numbers(10))
        run(log, failing(3), numbers(10), name="second")
    assert set_aside(log) == [3] * 8


def test_a_whole_batch_may_fail_and_is_complete_after_an_interruption(
    log: Log, task: list[SparkTask | None]
) -> None:
    def every(row: Any) -> int:
        raise LookupError(row.n)

    task[0] = SparkTask(0, QUERY, 0)
    with pytest.raises(OSError, match="interrupted"):
        run(log, every, numbers(12_000), until=11_000)
    assert 0 < len(letters(log)) < 12_000
    assert run(log, every, numbers(12_000)) == []
    assert sorted(set_aside(log)) == list(range(12_000))


def test_an_attempt_that_is_overtaken_fails_and_is_right_when_run_again(
    log: Log, task: list[SparkTask | None]
) -> None:
    task[0] = SparkTask(0, QUERY, 0)
    run(log, failing(1), numbers(2))
    origin = dict(letters(log)[0].headers)["thulawa.dead_letter"] or b""
    marker = (origin.decode().rsplit("/", 3)[0], 0)
    assert log.last_batch(marker) == 0
    task[0] = SparkTask(0, QUERY, 1)

    async def other_attempt(row: Any) -> int:
        if row.n == 3:
            log.append({"dead": []}, marker=marker, batch=2**32)
            raise LookupError("late")
        return int(row.n)

    with pytest.raises(ThulawaError, match="locate: another attempt"):
        run(log, other_attempt, numbers(10))
    assert set_aside(log) == [1]
    run(log, failing(3), numbers(10))
    assert set_aside(log) == [1, 3]


def test_a_place_that_is_not_there_is_refused_when_built(log: Log) -> None:
    with pytest.raises(UnknownTopic, match="nowhere"):
        dead_letter_topic(f"{log.address}#nowhere")
    with pytest.raises(ConfigurationError, match="names no topic of a broker"):
        dead_letter_topic("kafka:dead")
    for half in ({"on_error": "dead_letter"}, {"dead_letters": f"{log.address}#dead"}):
        with pytest.raises(ConfigurationError, match="go together"):
            map_by_key(len, key="n", returns="n long", **half)  # type: ignore[arg-type]
