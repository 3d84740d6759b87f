"""`map_by_key` on batch DataFrames: what comes out, in which order, and what is refused."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType

from thulawa.engine import Batch, Lane, Lanes, Retry
from thulawa.errors import ConfigurationError
from thulawa.runtime.caches import Cache
from thulawa.spark.map_by_key.api import flat_map_by_key, map_by_key
from thulawa.spark.map_by_key.error_split import split_errors


@pytest.fixture(scope="module")
def visits(spark: SparkSession) -> DataFrame:
    """Give a thousand visits of ten visitors in one partition."""
    return spark.range(0, 1000, 1, 1).selectExpr("id", "concat('v', id % 10) as visitor")


def test_every_row_goes_through_the_function_once(visits: DataFrame) -> None:
    async def double(row: Any) -> tuple[int]:
        await asyncio.sleep(0.001)
        return (row.id * 2,)

    out = visits.transform(map_by_key(double, key="visitor", returns="twice long", keep=["id"]))
    assert out.columns == ["id", "twice"]
    assert sorted(out.collect()) == [(number, 2 * number) for number in range(1000)]


def test_rows_of_a_key_leave_in_their_order_though_calls_take_any_time(visits: DataFrame) -> None:
    async def jitter(row: Any) -> int:
        await asyncio.sleep((row.id * 7919 % 13) / 1000)
        return int(row.id)

    out = visits.transform(
        map_by_key(jitter, key="visitor", returns="seen long", keep=["visitor"], in_flight=100)
    ).collect()
    for visitor in {row.visitor for row in out}:
        seen = [row.seen for row in out if row.visitor == visitor]
        assert seen == sorted(seen)
    assert [row.seen for row in out] != sorted(row.seen for row in out)


def test_emit_partition_keeps_the_order_of_the_partition(visits: DataFrame) -> None:
    async def jitter(row: Any) -> int:
        await asyncio.sleep((row.id * 7919 % 13) / 1000)
        return int(row.id)

    mapping = map_by_key(jitter, key="visitor", returns="seen long", emit="partition")
    assert [row.seen for row in visits.transform(mapping).collect()] == list(range(1000))


@pytest.mark.parametrize(
    "answer",
    [
        lambda row: (row.id, "x"),
        lambda row: {"number": row.id, "word": "x"},
        lambda row: __import__("pyspark").sql.Row(number=row.id, word="x"),
    ],
    ids=["tuple", "dict", "row"],
)
def test_a_result_is_a_tuple_a_dict_or_a_row(
    visits: DataFrame, answer: Callable[[Any], Any]
) -> None:
    out = visits.limit(5).transform(
        map_by_key(answer, key="visitor", returns="number long, word string", order="none")
    )
    assert sorted(out.collect()) == [(number, "x") for number in range(5)]


def test_none_gives_nulls_and_a_missing_entry_of_a_dict_too(visits: DataFrame) -> None:
    def answer(row: Any) -> dict[str, int] | None:
        return None if row.id % 2 else {"number": row.id}

    out = visits.limit(2).transform(
        map_by_key(answer, key="visitor", returns="number long, word string", order="none")
    )
    assert sorted(out.collect(), key=str) == [(0, None), (None, None)]


def test_a_flat_function_gives_any_number_of_rows(visits: DataFrame) -> None:
    async def repeat(row: Any) -> list[tuple[int]]:
        return [(row.id,)] * int(row.id % 3)

    out = visits.transform(
        flat_map_by_key(repeat, key="visitor", returns="number long", keep=["visitor"])
    )
    assert out.count() == sum(number % 3 for number in range(1000))
    assert out.where("concat('v', number % 10) != visitor").count() == 0


def test_a_row_knows_its_columns(visits: DataFrame) -> None:
    def describe(row: Any) -> str:
        assert row["visitor"] == row.visitor
        assert list(row) == [row.id, row.visitor]
        assert row.as_dict() == {"id": row.id, "visitor": row.visitor}
        return repr(row)

    out = visits.limit(1).transform(
        map_by_key(describe, key="visitor", returns="text string", order="none")
    )
    assert out.first() == ("Row(id=0, visitor='v0')",)


def test_a_resource_is_opened_once_per_worker_and_handed_over(visits: DataFrame) -> None:
    from contextlib import asynccontextmanager  # noqa: PLC0415 travels with the function

    opened = []

    @asynccontextmanager
    async def session() -> Any:
        opened.append(1)
        yield f"session {len(opened)}"

    async def ask(row: Any, resource: str) -> str:
        return resource

    mapping = map_by_key(ask, key="visitor", returns="answer string", resource=session)
    assert {row.answer for row in visits.transform(mapping).collect()} == {"session 1"}


def test_failures_can_become_a_column_and_be_split_off(visits: DataFrame) -> None:
    async def picky(row: Any) -> int:
        if row.id % 100 == 7:
            raise ValueError(f"no to {row.id}")
        return int(row.id)

    good, dead = split_errors(
        visits.transform(
            map_by_key(
                picky, key="visitor", returns="number long", keep=["id"], on_error="column",
                retry=Retry(attempts=2, first=0.001),
            )
        )
    )  # fmt: skip
    assert good.count() == 990
    rows = dead.collect()
    assert sorted(row.id for row in rows) == list(range(7, 1000, 100))
    assert {(row._error.type, row._error.attempts, row.number) for row in rows} == {
        ("ValueError", 2, None)
    }
    assert {row._error.offset for row in rows} == {row.id for row in rows}


def test_failures_can_be_dropped(visits: DataFrame) -> None:
    async def picky(row: Any) -> int:
        if row.id < 10:
            raise ValueError("no")
        return int(row.id)

    mapping = map_by_key(picky, key="visitor", returns="number long", on_error="drop")
    assert visits.transform(mapping).count() == 990


def test_batches_of_a_key_and_answers_per_row(visits: DataFrame) -> None:
    async def many(rows: list[Any]) -> list[Any]:
        assert len({row.visitor for row in rows}) == 1
        return [(row.id, len(rows)) for row in rows]

    mapping = map_by_key(many, key="visitor", returns="number long, size int", batch=Batch(size=10))
    out = visits.transform(mapping).collect()
    assert sorted(row.number for row in out) == list(range(1000))
    assert max(row.size for row in out) > 1


def test_a_cache_answers_equal_questions_once(visits: DataFrame) -> None:
    calls: list[str] = []

    async def look_up(row: Any) -> int:
        calls.append(row.visitor)
        await asyncio.sleep(0.001)
        return len(calls)

    mapping = map_by_key(
        look_up, key="id", returns="calls long", cache=Cache(by=lambda row: row.visitor)
    )
    assert visits.transform(mapping).agg({"calls": "max"}).first() == (10,)


def test_composite_and_binary_keys_are_keys(visits: DataFrame) -> None:
    async def same(row: Any) -> int:
        return int(row.id)

    binary = visits.selectExpr("id", "cast(visitor as binary) as raw", "id % 2 as half")
    mapping = map_by_key(same, key=["raw", "half"], returns="number long")
    assert binary.transform(mapping).count() == 1000


def test_repartition_restores_the_order_by_the_named_column(spark: SparkSession) -> None:
    scattered = spark.range(0, 400, 1, 8).selectExpr("399 - id as id", "id % 5 as visitor")

    async def same(row: Any) -> int:
        return int(row.id)

    out = scattered.transform(
        map_by_key(
            same, key="visitor", returns="seen long", keep=["visitor"],
            repartition=True, order_by="id",
        )
    ).collect()  # fmt: skip
    for visitor in range(5):
        seen = [row.seen for row in out if row.visitor == visitor]
        assert seen == sorted(seen)
        assert len(seen) == 80


def test_a_stream_of_files_is_repartitioned_batch_by_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    files = str(tmp_path / "files")
    spark.range(0, 60, 1, 3).selectExpr("59 - id as id", "id % 5 as key").write.parquet(files)

    async def same(row: Any) -> int:
        return int(row.id)

    mapping = map_by_key(
        same, key="key", returns="seen long", keep=["key"], repartition=True, order_by="id"
    )
    seen: dict[int, list[int]] = {}

    def collect(batch: DataFrame, _: int) -> None:
        for row in batch.transform(mapping).collect():
            seen.setdefault(row.key, []).append(row.seen)

    stream = spark.readStream.schema("id long, key long").parquet(files)
    writer = stream.writeStream.foreachBatch(collect).trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    assert seen == {key: list(range(4 - key, 60, 5)) for key in range(5)}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"key": "nobody"}, "no column"),
        ({"keep": ["nothing"]}, "no column"),
        ({"returns": "number ling"}, "is not a schema"),
        (
            {"returns": "id long", "keep": ["id"]},
            r"columns \['id'\] would be in the output more than once",
        ),
        ({"returns": "a int, a int"}, r"columns \['a'\] would be in the output more than once"),
        ({"keep": ["id", "id"]}, r"columns \['id'\] would be in the output more than once"),
        ({"returns": "_error int", "on_error": "column"}, "_error.*on_error='column'"),
        ({"returns": ""}, "the output would be empty"),
        ({"returns": "string"}, "names no columns"),
        ({"returns": LongType()}, "names no columns"),
        ({"returns": str}, "names no columns"),
        ({"returns": "word varchar(3)"}, "returns='word varchar.*not supported"),
        ({"repartition": True, "order_by": 5}, "order_by takes names of columns"),
        ({"repartition": True}, "order_by"),
        ({"order_by": "id"}, "repartition=True"),
        ({"key": None}, "one call at a time"),
        ({"in_flight": 0}, "in_flight"),
        ({"keep": "id"}, r"write keep=\['id'\]"),
        ({"key": len}, "key takes names of columns.*withColumn"),
        ({"key": [1]}, "key takes names of columns"),
        ({"in_fligth": 5}, "did you mean 'in_flight'"),
        ({"quux": 5}, "there is no option 'quux'; there are"),
        ({"lane": "visitor"}, "go together"),
        ({"lane": "nobody", "lanes": Lanes()}, "no column"),
        ({"timestamp": "visitor"}, "timestamp='visitor' is of type string; name a column of"),
    ],
)
def test_what_cannot_work_is_refused_when_built(
    visits: DataFrame, change: dict[str, Any], reason: str
) -> None:
    async def same(row: Any) -> int:
        return int(row.id)

    arguments: dict[str, Any] = {"key": "visitor", "returns": "number long"} | change
    with pytest.raises(ConfigurationError, match=reason):
        visits.transform(map_by_key(same, **arguments))


@pytest.mark.parametrize(
    "before",
    [
        lambda df: df.repartition(4),
        lambda df: df.groupBy("visitor").count(),
        lambda df: df.join(df.select("id"), "id"),
        lambda df: df.dropDuplicates(["visitor"]),
    ],
    ids=["repartition", "aggregate", "join", "deduplicate"],
)
def test_a_plan_that_reorders_rows_is_refused(
    visits: DataFrame, before: Callable[[DataFrame], DataFrame]
) -> None:
    async def same(row: Any) -> int:
        return 1

    mapping = map_by_key(same, key="visitor", returns="number long")
    with pytest.raises(ConfigurationError, match="changes the order"):
        before(visits).transform(mapping)
    unordered = map_by_key(same, key="visitor", returns="number long", order="none")
    assert before(visits).transform(unordered).count() > 0


def test_a_name_that_several_columns_have_is_refused(visits: DataFrame) -> None:
    twice = visits.selectExpr("id", "visitor", "visitor")
    mapping = map_by_key(lambda row: 1, key="visitor", returns="number long", name="count")
    with pytest.raises(ConfigurationError, match=r"count: .*several columns \['visitor'\]"):
        twice.transform(mapping)


def test_times_are_of_the_session_s_zone(spark: SparkSession, visits: DataFrame) -> None:
    zone = "spark.sql.session.timeZone"
    before = spark.conf.get(zone)
    assert before is not None
    spark.conf.set(zone, "Asia/Colombo")
    try:

        def later(row: Any) -> tuple[Any, Any]:
            assert row.t.utcoffset().total_seconds() == 5.5 * 3600
            return row.t, row.t.replace(tzinfo=None)

        rows = visits.limit(1).selectExpr("visitor", "timestamp'2026-01-01 10:00:00' as t")
        mapping = map_by_key(
            later, key="visitor", returns="one timestamp, two timestamp", keep=["t"]
        )
        out = rows.transform(mapping).selectExpr("one = t", "two = t").collect()
        assert out == [(True, True)]
    finally:
        spark.conf.set(zone, before)


def test_a_column_that_a_row_has_not_is_named_with_those_it_has(visits: DataFrame) -> None:
    mapping = map_by_key(lambda row: row["ip"], key="visitor", returns="ip string", name="find")
    wanted = r"find: KeyError: .*no column 'ip'; its columns are id, visitor.*offset 0"
    with pytest.raises(PythonException, match=wanted):
        visits.transform(mapping).collect()


def test_an_exception_ends_the_query_and_names_operator_and_row(visits: DataFrame) -> None:
    async def locate(row: Any) -> int:
        if row.id == 417:
            raise LookupError("who is this")
        return 1

    mapping = map_by_key(locate, key="visitor", returns="number long", name="locate")
    with pytest.raises(PythonException, match=r"locate: LookupError: who is this .*offset 417"):
        visits.transform(mapping).collect()


@pytest.mark.parametrize("result", ["text", (1, 2), {"unknown": 1}, [1]])
def test_a_result_of_the_wrong_type_names_operator_and_row(
    visits: DataFrame, result: object
) -> None:
    async def wrong(row: Any) -> object:
        return result if row.id == 417 else 1

    mapping = map_by_key(wrong, key="visitor", returns="number long", name="count")
    with pytest.raises(PythonException, match=r"count: .*offset 417.*return value"):
        visits.transform(mapping).collect()


@pytest.mark.parametrize("key", ["array(id)", "map(id, id)", "struct(id)"])
def test_a_column_that_cannot_be_a_key_is_refused(visits: DataFrame, key: str) -> None:
    mapping = map_by_key(lambda row: 1, key="nested", returns="number long", name="count")
    with pytest.raises(ConfigurationError, match=r"count: column 'nested' .* cannot be a key"):
        visits.selectExpr(f"{key} as nested").transform(mapping)


def test_an_error_shows_the_users_line_and_the_partition(visits: DataFrame) -> None:
    async def locate(row: Any) -> int:
        raise LookupError("who is this")  # the user's own line

    mapping = map_by_key(locate, key="visitor", returns="number long", name="locate")
    with pytest.raises(PythonException) as caught:
        visits.transform(mapping).collect()
    assert "# the user's own line" in str(caught.value)
    assert "operator locate, in Spark partition 0" in str(caught.value)


@pytest.mark.parametrize(
    "lane", ["lane", lambda row: int(row.id < 500)], ids=["column", "function"]
)
def test_urgent_rows_go_first(visits: DataFrame, lane: Any) -> None:
    async def same(row: Any) -> int:
        await asyncio.sleep(0.001)
        return int(row.id)

    lanes = Lanes(lanes=(Lane(name="urgent"), Lane(name="usual")), strict=True)
    rows = visits.selectExpr("id", "if(id < 500, 'usual', 'urgent') as lane")
    mapping = map_by_key(same, key="id", returns="seen long", lanes=lanes, lane=lane, in_flight=1)
    seen = [row.seen for row in rows.transform(mapping).collect()]
    assert sorted(seen) == list(range(1000))
    # the first few start before the rest has arrived
    assert sum(number < 500 for number in seen[:500]) < 10


def test_an_unknown_lane_names_operator_and_row(visits: DataFrame) -> None:
    mapping = map_by_key(
        lambda row: 1, key="id", returns="number long", name="count",
        lanes=Lanes(), lane=lambda row: "default" if row.id < 7 else "other",
    )  # fmt: skip
    with pytest.raises(PythonException, match=r"count: lane=: there is no lane 'other'.*offset 7"):
        visits.transform(mapping).collect()


def test_a_function_that_cannot_be_pickled_says_so(visits: DataFrame) -> None:
    import threading  # noqa: PLC0415 what cannot travel

    lock = threading.Lock()

    async def guarded(row: Any) -> int:
        with lock:
            return 1

    mapping = map_by_key(guarded, key="visitor", returns="number long", name="guarded")
    with pytest.raises(ConfigurationError, match=r"guarded: .*cannot be pickled.*resource"):
        visits.transform(mapping)
