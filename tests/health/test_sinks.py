"""Sinks receive every total, and count none twice."""

import base64
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.health.helpers import FIRST, is_valid, story, written
from tests.health.local import LocalCounts
from thulawa.brokers.embedded import Log, ProducerRecord
from thulawa.brokers.port import open_broker
from thulawa.core.types import TopicPartition
from thulawa.errors import ConfigurationError
from thulawa.health import Cell, Count, Influx, InfluxUnreachable, Prometheus
from thulawa.health.changelog import CountsChangelog
from thulawa.health.influx import lines
from thulawa.health.merging import Merging

VALID = Cell("tx", 0, 1_000, "valid")
DASHBOARD = Path(__file__).parents[2] / "grafana" / "topic-health.json"


@contextmanager
def server(*answers: int, text: str = "") -> Iterator[tuple[str, list[str]]]:
    """Answer requests with these states, then with 204; remember the bodies that came."""
    bodies: list[str] = []
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(left.pop(0) if left else 204)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *args: object) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    thread = threading.Thread(target=httpd.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{httpd.server_address[1]}", bodies
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()


def test_points_go_out_in_batches() -> None:
    with server() as (url, bodies):
        influx = Influx(url, database="health", batch=2)
        influx.put([Count(VALID._replace(window=second), 1, 1) for second in range(5)])
        influx.close()
    assert [len(body.splitlines()) for body in bodies] == [2, 2, 1]


def test_a_transient_failure_is_retried_with_backoff(caplog: pytest.LogCaptureFixture) -> None:
    pauses: list[float] = []
    with server(503, 429) as (url, bodies):
        influx = Influx(url, database="health", sleep=pauses.append)
        influx.put([Count(VALID, 4, 5)])
        influx.close()
    assert bodies == ["topic-health,topic=tx,partition=0 valid=4i 1000"] * 3
    assert pauses == [0.1, 0.2]
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("WARNING", f"{url} does not accept points (503); retrying for up to 300 s")
    ]


def test_a_rejected_request_is_not_retried() -> None:
    with server(400) as (url, bodies):
        influx = Influx(url, database="health")
        with pytest.raises(InfluxUnreachable, match="400"):
            influx.put([Count(VALID, 4, 5)])
        influx.close()
    assert len(bodies) == 1


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (400, '{"error":"partial write: points beyond retention policy dropped=1"}'),
        (422, "failure writing points: partial write: points beyond retention policy dropped=1"),
    ],
)
def test_points_beyond_retention_are_logged_and_dropped(
    caplog: pytest.LogCaptureFixture, status: int, text: str
) -> None:
    with server(status, text=text) as (url, bodies):
        influx = Influx(url, database="health", batch=1)
        influx.put([Count(VALID._replace(window=window), 1, 1) for window in (1, 2)])
        influx.close()
    assert len(bodies) == 2
    assert "dropped=1" in caplog.text


def test_points_that_are_dropped_for_another_reason_are_an_error() -> None:
    text = '{"error":"partial write: field type conflict: input field dropped=1"}'
    with server(400, text=text) as (url, _):
        influx = Influx(url, database="health")
        with pytest.raises(InfluxUnreachable, match="conflict"):
            influx.put([Count(VALID, 4, 5)])
        influx.close()


def test_an_unreachable_database_is_an_error_after_the_retry_timeout() -> None:
    with server() as (url, _):
        pass
    influx = Influx(url, database="health", retry_timeout="100 ms", sleep=lambda _: None)
    with pytest.raises(InfluxUnreachable, match="at the next start"):
        influx.put([Count(VALID, 4, 5)])
    with pytest.raises(InfluxUnreachable, match=r"Connection refused$"):
        influx.create_database()


def test_the_error_of_a_missing_database_says_what_to_do() -> None:
    with server(404, text='{"error":"database not found"}') as (url, _):
        influx = Influx(url, database="health")
        with pytest.raises(InfluxUnreachable, match=r"create_database\(\)"):
            influx.put([Count(VALID, 4, 5)])
        influx.close()


def test_names_are_escaped_in_line_protocol() -> None:
    cell = Cell("a topic,b=c", None, 5, "not ok")
    assert lines([Count(cell, 1, 1)], "topic health") == [
        r"topic\ health,topic=a\ topic\,b\=c not\ ok=1i 5"
    ]


def test_names_that_line_protocol_does_not_allow_are_replaced() -> None:
    counts = [Count(VALID._replace(status=status), 1, 1) for status in ("", "a\\", "b\\c", "d\ne")]
    assert lines(counts, "m") == [r"m,topic=tx,partition=0 (none)=1i,a\_=1i,b\c=1i,d\ne=1i 1000"]


def test_an_empty_measurement_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match="measurement"):
        Influx("http://localhost:8086", database="health", measurement="")


def test_user_and_password_are_unquoted() -> None:
    influx = Influx("http://ann%40home:a%3Ab%2F@localhost:8086", database="health")
    login = base64.b64encode(b"ann@home:a:b/").decode()
    assert influx._headers["Authorization"] == f"Basic {login}"


def test_an_invalid_address_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match="address"):
        Influx("localhost:8086", database="health")


def samples(text: str, name: str) -> list[tuple[dict[str, str], float]]:
    """Return the labels and values of a metric."""
    families = text_string_to_metric_families(text)
    return [
        (sample.labels, sample.value)
        for family in families
        for sample in family.samples
        if sample.name == name
    ]


def test_prometheus_escapes_labels() -> None:
    metrics = Prometheus(0)
    try:
        metrics.put([Count(VALID._replace(status='a "b"\\\n'), 4, 5)])
        ((labels, _),) = samples(metrics.text(), "topic_health_messages_total")
    finally:
        metrics.close()
    assert labels["status"] == 'a "b"\\\n'


def test_prometheus_counts_a_total_once() -> None:
    metrics = Prometheus(0)
    try:
        metrics.put([Count(VALID, 4, 5), Count(VALID._replace(status="invalid"), 1, 4)])
        metrics.put([Count(VALID, 4, 5)])  # sent again
        metrics.put([Count(VALID, 6, 8)])
        with urlopen(f"http://127.0.0.1:{metrics.port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    finally:
        metrics.close()
    place = {"topic": "tx", "partition": "0"}
    assert samples(text, "topic_health_messages_total") == [
        (place | {"status": "invalid"}, 1),
        (place | {"status": "valid"}, 6),
    ]
    assert samples(text, "topic_health_offset") == [(place, 8)]
    assert samples(text, "topic_health_window_seconds") == [(place, 1.0)]
    assert "# TYPE topic_health_messages_total counter\n" in text


def test_prometheus_does_not_count_messages_of_other_instances(tmp_path: Path) -> None:
    address = story(tmp_path)
    given: dict[str, Any] = {"status": is_valid, "output": "metrics", "application_id": "health"}
    LocalCounts("tx", log=address, **given).count_available()
    for merge, place in ((False, {"topic": "tx", "partition": "0"}), (True, {"topic": "tx"})):
        with Log(address) as log:
            log.append({"tx": [ProducerRecord(None, b"v", (), FIRST, 0)]})
        metrics = Prometheus(0)
        try:
            after = LocalCounts("tx", log=address, sinks=[metrics], merge=merge, **given)
            assert after.count_available() == 1
            text = metrics.text()
        finally:
            metrics.close()
        counted = samples(text, "topic_health_messages_total")
        assert (place | {"status": "valid"}, 1) in counted
        assert (place | {"status": "invalid"}, 0) in counted


def test_prometheus_has_no_offset_of_a_sum() -> None:
    metrics = Prometheus(0)
    try:
        metrics.put([Count(VALID._replace(partition=None), 4, 0)])
        text = metrics.text()
    finally:
        metrics.close()
    labels = {"topic": "tx", "status": "valid"}
    assert samples(text, "topic_health_messages_total") == [(labels, 4)]
    assert samples(text, "topic_health_offset") == []


def test_a_port_in_use_is_named_in_the_error() -> None:
    metrics = Prometheus(0)
    try:
        with pytest.raises(ConfigurationError, match=f"127.0.0.1:{metrics.port}.*in use"):
            Prometheus(metrics.port)
    finally:
        metrics.close()


class Sums:
    """A topic, and sums that follow it."""

    def __init__(self, folder: Path) -> None:
        self.changelog = CountsChangelog(open_broker(f"file:{folder}/topics"), "metrics", "health")
        self.changelog._broker.create_topic("tx", partitions=2)
        self.changelog.prepare(["tx"])
        self.merging = Merging(expire=5_000)

    def write(self, partition: int, *counts: tuple[int, int | None, int]) -> None:
        """Write window, total and offset of some cells of a partition."""
        changes = [Count(Cell("tx", partition, at, "valid"), value, o) for at, value, o in counts]
        assert written(self.changelog, TopicPartition("tx", partition), changes)

    def follow(self) -> list[tuple[int, int | None]]:
        return [(one.cell.window, one.value) for one in self.merging.follow(self.changelog)]


def test_sums_follow_the_topic(tmp_path: Path) -> None:
    sums = Sums(tmp_path)
    sums.write(0, (1_000, 4, 5))
    sums.write(1, (1_000, 3, 4))
    assert sums.follow() == [(1_000, 7)]
    assert sums.follow() == []
    sums.write(1, (1_000, 5, 9), (2_000, 1, 8))
    assert sums.follow() == [(1_000, 9), (2_000, 1)]
    # the window expires in one partition: its sum is final, also when the other still counts
    sums.write(1, (9_000, 1, 10), (1_000, None, 10), (2_000, None, 10))
    assert sums.follow() == [(9_000, 1)]
    sums.write(0, (1_000, 6, 7))
    assert sums.follow() == []


def test_a_sum_without_an_expired_part_is_not_published_after_a_restart(tmp_path: Path) -> None:
    sums = Sums(tmp_path)
    sums.write(0, (1_000, 4, 5), (4_000, 2, 6))
    # it had a total of the first window too: compaction has removed it, and what said so
    sums.write(1, (9_000, 1, 5))
    assert sums.follow() == [(4_000, 2), (9_000, 1)]
    sums.write(0, (1_000, 6, 7))
    assert sums.follow() == []


def test_a_sum_that_changes_and_expires_at_once_is_published(tmp_path: Path) -> None:
    sums = Sums(tmp_path)
    sums.write(0, (1_000, 4, 5))
    assert sums.follow() == [(1_000, 4)]
    sums.write(0, (1_000, 5, 6), (9_000, 1, 7), (1_000, None, 7))
    sums.write(1, (1_000, 3, 4))
    assert sums.follow() == [(1_000, 8), (9_000, 1)]
    assert sums.follow() == []


def test_the_dashboard_queries_existing_fields() -> None:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    queries = [target["query"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(queries) == 5
    for query in queries:
        assert 'FROM "topic-health"' in query
        assert set(re.findall(r'sum\("(\w+)"\)', query)) <= {"valid", "invalid"}
