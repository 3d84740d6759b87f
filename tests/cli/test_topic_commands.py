"""`thulawa topics` as a user types it."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from thulawa.brokers.embedded import ConsumerRecord, Log, ProducerRecord
from thulawa.cli import topic_commands as module
from thulawa.cli.commands import app
from thulawa.cli.lines import as_json, parse


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "topics")


def topics(folder: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["topics", *arguments, "--log", folder])


def produce(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: str, lines: bytes, *options: str
) -> Result:
    source = tmp_path / "stdin"
    source.write_bytes(lines)
    with source.open() as stdin:
        number = stdin.fileno()
        monkeypatch.setattr(module, "_stdin", lambda: number)
        return topics(folder, "produce", "visits", *options)


def objects(result: Result) -> list[Any]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_what_is_produced_is_listed_and_tailed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: str
) -> None:
    assert (
        topics(folder, "create", "visits", "--partitions", "2", "--keep", "7 days").exit_code == 0
    )
    made = produce(monkeypatch, tmp_path, folder, b"10.0.0.1:/\n10.0.0.2:/a:b\r\nalone")
    assert (made.exit_code, made.stderr) == (0, "3 record(s) written to visits\n")
    listed = objects(topics(folder, "list", "--json"))
    assert [(row["topic"], row["partitions"], row["records"]) for row in listed] == [
        ("visits", 2, 3)
    ]
    assert listed[0]["bytes"] > 0
    assert sum(end - start for start, end in listed[0]["offsets"].values()) == 3
    with Log(f"file:{folder}") as log:
        assert log.describe("visits").retention.seconds == 7 * 86_400
    tailed = objects(topics(folder, "tail", "visits", "--json"))
    assert sorted((row["key"] or "", row["value"]) for row in tailed) == [
        ("", "alone"),
        ("10.0.0.1", "/"),
        ("10.0.0.2", "/a:b"),
    ]
    assert "10.0.0.2  /a:b" in topics(folder, "tail", "visits").stdout


def test_tail_gives_the_last_records_over_the_gaps_of_a_compaction(folder: str) -> None:
    with Log(f"file:{folder}") as log:
        log.create_topic("last", compact=True)
        with log.producer() as producer:
            for number in range(50):
                producer.send(
                    "last", key=b"%d" % (number if number < 3 else 9), value=b"%d" % number
                )
        log.clean("last")
    assert [
        row["value"] for row in objects(topics(folder, "tail", "last", "-n", "2", "--json"))
    ] == [
        "2",
        "49",
    ]
    assert topics(folder, "tail", "last", "-n", "0").stdout == ""


def test_what_tail_prints_as_json_produce_reads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: str
) -> None:
    topics(folder, "create", "visits")
    record = ConsumerRecord("other", 3, 7, 1_000, b"\xff", None, (("agent", b"curl"),))
    produce(monkeypatch, tmp_path, folder, as_json(record).encode() + b"\n", "--json")
    with Log(f"file:{folder}") as log:
        (copied,) = log.read("visits", 0, 0)
    assert copied == record._replace(topic="visits", partition=0, offset=0)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[]", "not an object of"),
        ('{"kee": "a"}', "not an object of"),
        ('{"key": 1}', "1 is neither text"),
        ("no json", "Expecting value"),
        ('{"key": {"base64": "?"}}', "base64"),
        ('{"key": {"base64": 5}}', "neither text"),
        ('{"headers": 5}', "headers are pairs"),
        ('{"headers": {"agent": "curl"}}', "headers are pairs"),
        ('{"headers": [["agent"]]}', "headers are pairs"),
        ('{"headers": [[5, "curl"]]}', "headers are pairs"),
        ('{"timestamp": "now"}', "timestamp 'now'"),
        ('{"timestamp": -1}', "timestamp -1"),
    ],
)
def test_a_line_that_is_no_record_is_refused_with_the_reason(line: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse(line, None)


def test_a_bad_line_is_named_and_those_before_it_are_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: str
) -> None:
    topics(folder, "create", "visits")
    made = produce(monkeypatch, tmp_path, folder, b'{"value": "a"}\nodd\n', "--json")
    assert made.exit_code == 2
    assert "line 2" in made.stderr
    assert "1 record(s) written" in made.stderr


def test_an_unknown_topic_ends_with_1_and_a_bad_setting_with_2(folder: str) -> None:
    topics(folder, "create", "visits")
    unknown = topics(folder, "tail", "vists")
    assert (unknown.exit_code, "vists" in unknown.stderr) == (1, True)
    assert topics(folder, "create", "visits", "--partitions", "0").exit_code == 2
    assert topics(folder, "create", "other", "--keep", "soon").exit_code == 2
    assert topics(folder, "create", "visits", "--partitions", "3").exit_code == 1


def test_a_log_without_topics_says_how_to_make_one(folder: str) -> None:
    listed = topics(folder, "list")
    assert (listed.exit_code, listed.stdout) == (0, "")
    assert "topics create" in listed.stderr
    assert not Path(folder).exists()


def test_an_address_elsewhere_is_refused_rather_than_taken_for_a_folder() -> None:
    listed = topics("s3://bucket/topics", "list")
    assert (listed.exit_code, "no address of a broker" in listed.stderr) == (2, True)


def start(folder: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(Path(sys.executable).with_name("thulawa")), "topics", *arguments, "--log", folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_followed_topic_shows_what_comes_until_it_is_interrupted(folder: str) -> None:
    with Log(f"file:{folder}") as log:
        log.create_topic("visits", partitions=2)
        log.append({"visits": [ProducerRecord(b"a", b"old"), ProducerRecord(b"a", b"last")]})
        with start(folder, "tail", "visits", "-n", "1", "--follow", "--json") as tail:
            assert tail.stdout is not None
            assert json.loads(tail.stdout.readline())["value"] == "last"
            for number in range(3):  # each is shown before the next is written
                log.append({"visits": [ProducerRecord(b"%d" % number, b"new %d" % number)]})
                assert json.loads(tail.stdout.readline())["value"] == f"new {number}"
            tail.send_signal(signal.SIGINT)
            assert tail.wait(30) == 0
            assert tail.communicate() == ("", "")


def test_what_was_produced_before_an_interrupt_is_written(folder: str) -> None:
    with Log(f"file:{folder}") as log:
        log.create_topic("visits")
        with start(folder, "produce", "visits") as produce, log.consumer("visits") as consumer:
            assert produce.stdin is not None
            produce.stdin.write("a:1\nb:2\nhalf a li")
            produce.stdin.flush()
            assert [one.value for one in consumer.poll(timeout=30)] == [b"1", b"2"]
            produce.send_signal(signal.SIGINT)
            assert produce.wait(30) == 130
            assert produce.communicate()[1] == "2 record(s) written to visits\ninterrupted\n"
        assert log.end_offsets("visits") == {0: 2}
