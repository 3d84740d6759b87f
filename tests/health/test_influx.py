"""A real InfluxDB sums what was written to what the story says."""

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from tests.health.helpers import FIRST, SUMS, counted, is_valid, story
from thulawa.brokers.embedded import Log
from thulawa.core.types import TopicPartition
from thulawa.dev.maven import cache_folder
from thulawa.health import Count, Influx
from thulawa.health.counter import Rule, Since, Totals
from thulawa.health.counts import Cell
from thulawa.health.tasks import Range

DASHBOARD = Path(__file__).parents[2] / "grafana" / "topic-health.json"


def find_influxd() -> str | None:
    """Find the server: installed, or unpacked into the cache without being installed."""
    unpacked = cache_folder() / "influxdb" / "usr" / "bin" / "influxd"
    return shutil.which("influxd") or (str(unpacked) if unpacked.exists() else None)


@pytest.fixture(scope="module")
def influx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = find_influxd()
    if server is None:
        pytest.skip("InfluxDB is not installed: apt-get install influxdb, or see docs")
    folder = tmp_path_factory.mktemp("influxdb")
    ports = [free_port(), free_port()]
    config = folder / "influxdb.conf"
    config.write_text(
        f'reporting-disabled = true\nbind-address = "127.0.0.1:{ports[1]}"\n'
        f'[meta]\ndir = "{folder}/meta"\n'
        f'[data]\ndir = "{folder}/data"\nwal-dir = "{folder}/wal"\n'
        f'[http]\nbind-address = "127.0.0.1:{ports[0]}"\nlog-enabled = false\n'
        '[monitor]\nstore-enabled = false\n[logging]\nlevel = "error"\n'
    )
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([server, "-config", str(config)], stdout=log, stderr=log)
        try:
            yield await_answer(f"http://127.0.0.1:{ports[0]}")
        finally:
            process.terminate()
            process.wait(30)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def await_answer(url: str) -> str:
    deadline = time.monotonic() + 60
    while True:
        try:
            with urlopen(f"{url}/ping", timeout=5):  # noqa: S310
                return url
        except (URLError, ConnectionError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def ask(url: str, database: str, query: str) -> list[dict[str, Any]]:
    with urlopen(f"{url}/query?{urlencode({'db': database, 'q': query, 'epoch': 'ms'})}") as answer:  # noqa: S310
        results = json.load(answer)["results"]
    assert "error" not in results[0], results
    series: list[dict[str, Any]] = results[0].get("series", [])
    return series


def story_counts(folder: Path) -> list[Count]:
    rule = Rule(is_valid, 1_000, 86_400_000)
    places = [TopicPartition("tx", 0), TopicPartition("tx", 1)]
    with Log(story(folder)) as log:
        ranges = [Range(one, Since(), log.end_offsets("tx")[one.partition]) for one in places]
        found = counted(log, ranges, rule)
    return [
        count for one in places for count in Totals(one, rule.expire).add(found[one], position=0)
    ]


def test_the_sum_over_partitions_is_that_of_the_story(influx: str, tmp_path: Path) -> None:
    sink = Influx(influx, database="story")
    sink.create_database()
    counts = story_counts(tmp_path)
    sink.put(counts)
    sink.put(counts[::-1])  # again, in another order: a point takes the place of itself
    sink.close()
    (points,) = ask(
        influx,
        "story",
        'SELECT sum("valid") AS valid, sum("invalid") AS invalid FROM "topic-health" '
        "WHERE time >= 1501273548000ms AND time <= 1501273550000ms GROUP BY time(1s)",
    )
    assert [tuple(point) for point in points["values"]] == SUMS
    rows = ask(
        influx, "story", 'SELECT valid, invalid FROM "topic-health" WHERE "partition" = \'0\''
    )
    assert rows[0]["values"] == [
        [FIRST, 4, 1],
        [FIRST + 1000, 1, 1],
        [FIRST + 2000, 2, 1],
    ]


def test_the_dashboard_s_queries_are_answered(influx: str, tmp_path: Path) -> None:
    sink = Influx(influx, database="dashboard")
    sink.create_database()
    sink.put(story_counts(tmp_path))
    sink.close()
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        for target in panel["targets"]:
            query = (
                target["query"]
                .replace("/^$topic$/", "/^(tx)$/")
                .replace("$timeFilter", f"time >= {FIRST}ms AND time <= {FIRST + 2000}ms")
                .replace("$__interval", "1s")
            )
            assert "$" not in query.replace("$/", "")
            assert ask(influx, "dashboard", query), query


def test_points_beyond_retention_do_not_end_the_application(
    influx: str, caplog: pytest.LogCaptureFixture
) -> None:
    sink = Influx(influx, database="short")
    with urlopen(  # noqa: S310
        f"{influx}/query?{urlencode({'q': 'CREATE DATABASE short WITH DURATION 1h'})}", b""
    ):
        pass
    now = int(time.time()) * 1000
    names = ["valid", "", "a\\", "b\\c", "d e,f=g", "h\\,i\\ j"]
    sink.put([Count(Cell("tx", 0, FIRST, "valid"), 1, 1)])
    assert "dropped=1" in caplog.text
    sink.put([Count(Cell("tx", 0, window, s), 2, 2) for window in (FIRST, now) for s in names])
    sink.close()
    (points,) = ask(influx, "short", 'SELECT * FROM "topic-health"')
    (found,) = ({**dict(zip(points["columns"], row, strict=True))} for row in points["values"])
    assert (found.pop("time"), found.pop("topic"), found.pop("partition")) == (now, "tx", "0")
    assert found == dict.fromkeys(["valid", "(none)", "a\\_", "b\\c", "d e,f=g", "h\\_,i\\_ j"], 2)
