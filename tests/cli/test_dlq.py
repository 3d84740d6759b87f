"""Dead letters on the command line: listed, shown, and sent back once."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from thulawa.brokers.embedded import Log, ProducerRecord
from thulawa.cli.commands import app
from thulawa.runtime.handlers import DeadLetterQueue, Handlers
from thulawa.runtime.task_options import TaskOptions
from thulawa.streams.streams_builder import StreamsBuilder
from thulawa.testing import TopologyTestDriver


def dlq(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["dlq", *arguments])


def lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def letters() -> list[ProducerRecord]:
    """Give the dead letters that a program writes."""
    options = TaskOptions(handlers=Handlers(processing=DeadLetterQueue("dead")))
    builder = StreamsBuilder()
    builder.stream("numbers").map_values(lambda value: 1 // value).to("inverses")
    with TopologyTestDriver(builder.build(), options=options) as driver:
        topic = driver.create_input_topic("numbers")
        for number in (0, 1, 0):
            topic.pipe_input("k", number, timestamp=5, headers=(("h", b"x"),))
        found = driver.create_output_topic("dead").read_records_to_list()
    return [ProducerRecord(b"k", b"0", one.headers, one.timestamp) for one in found]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Log:
    monkeypatch.chdir(tmp_path)
    made = Log("file:./topics")
    for topic in ("numbers", "dead"):
        made.create_topic(topic)
    made.append({"dead": letters()})
    return made


def test_letters_are_listed_with_what_happened_and_where_they_came_from(log: Log) -> None:
    first, second = lines(dlq("list", "dead", "--json"))
    assert (first["letter"], second["letter"]) == ("0:0", "0:1")
    assert (first["exception"], first["topic"], first["offset"]) == (
        "ZeroDivisionError", "numbers", "0",
    )  # fmt: skip
    assert (first["key"], first["replayed"]) == ("k", False)
    shown = dlq("list", "dead").stdout
    assert "ZeroDivisionError" in shown
    assert "numbers:0:2" in shown


def test_one_letter_is_shown_whole_with_its_stack_trace(log: Log) -> None:
    (whole,) = lines(dlq("show", "dead", "0:1", "--json"))
    assert whole["value"] == "0"
    assert whole["headers"] == [["h", "x"]]
    assert "test_dlq.py" in whole["stacktrace"]
    assert "1 // value" in dlq("show", "dead", "0:1").stdout


def test_letters_go_back_once_as_they_were(log: Log) -> None:
    planned = dlq("replay", "dead")
    assert planned.exit_code == 0
    assert "0:1  would be sent back to numbers" in planned.stdout
    assert log.end_offsets("numbers") == {0: 0}

    assert dlq("replay", "dead", "--execute").exit_code == 0
    assert dlq("replay", "dead", "--execute").stdout == ""
    log.append({"dead": letters()[:1]})
    assert lines(dlq("replay", "dead", "--execute", "--json")) == [
        {"letter": "0:2", "to": "numbers", "done": True}
    ]
    back = list(log.read("numbers", 0, 0))
    assert [(one.key, one.value, one.timestamp) for one in back] == [(b"k", b"0", 5)] * 3
    assert all(one.headers == (("h", b"x"),) for one in back)
    assert all(one["replayed"] for one in lines(dlq("list", "dead", "--json")))


def test_what_cannot_go_back_stops_those_behind_it_unless_it_is_left_out(log: Log) -> None:
    cut = ProducerRecord(
        b"k", b"xx",
        (("__streams.errors.topic", b"numbers"), ("thulawa.errors.size", b"2000000")),
    )  # fmt: skip
    stranger = ProducerRecord(b"k", b"1", (("__streams.errors.topic", b"gone"),))
    log.append({"dead": [cut, stranger, letters()[0]]})
    stopped = dlq("replay", "dead", "--execute")
    assert stopped.exit_code == 1
    assert "only the first 2 of 2000000 bytes" in stopped.stdout
    assert log.end_offsets("numbers") == {0: 2}

    done = dlq("replay", "dead", "--execute", "--skip")
    assert done.exit_code == 0
    assert "there is no topic 'gone'" in done.stdout
    assert "1 sent back, 2 left out for good" in done.stderr
    assert log.end_offsets("numbers") == {0: 3}
    assert dlq("replay", "dead", "--execute", "--to", "numbers").stdout == ""


def test_a_row_of_map_by_key_is_not_sent_back_for_the_record_it_came_from(log: Log) -> None:
    log.create_topic("rows-dead")
    log.create_topic("rows")
    told = (("thulawa.dead_letter", b"q/0/0/7"), ("__streams.errors.topic", b"numbers"))
    log.append({"rows-dead": [ProducerRecord(b"k", b'{"value": 0}', told)]})
    refused = dlq("replay", "rows-dead", "--execute")
    assert (refused.exit_code, log.end_offsets("numbers")) == (1, {0: 0})
    assert "a row as JSON" in refused.stdout
    assert dlq("replay", "rows-dead", "--execute", "--to", "rows").exit_code == 0
    (row,) = log.read("rows", 0, 0)
    assert (row.value, row.headers) == (b'{"value": 0}', ())


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("show", "dead", "7"), 2),
        (("show", "dead", "0:99"), 2),
        (("list", "nothing"), 1),
        (("list", "dead", "--log", "kafka://nowhere"), 2),
    ],
    ids=["no place", "no such letter", "no such topic", "no address"],
)
def test_misuse_and_failure_have_their_exit_codes(
    log: Log, arguments: tuple[str, ...], code: int
) -> None:
    assert dlq(*arguments).exit_code == code


HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil\u2066\x00\u2028\udcff"


def hostile() -> ProducerRecord:
    """Return a letter all of whose parts try to write to a terminal."""
    text = HOSTILE.encode(errors="surrogatepass")
    named = HOSTILE[:-1]
    told = ("exception", "message", "stacktrace", "node", "topic", "partition", "offset")
    headers = [(f"__streams.errors.{name}", b"a\n" + text) for name in told]
    return ProducerRecord(text, text, ((named, text), *headers), 5)


@pytest.mark.parametrize(
    "arguments",
    [
        ("list", "dead"),
        ("list", "dead", "--json"),
        ("show", "dead", "0:2"),
        ("show", "dead", "0:2", "--json"),
        ("replay", "dead"),
        ("replay", "dead", "--json"),
    ],
    ids=" ".join,
)
def test_nothing_that_a_letter_holds_reaches_the_terminal_as_a_command(
    log: Log, arguments: tuple[str, ...]
) -> None:
    log.append({"dead": [hostile()]})
    found = dlq(*arguments)
    assert [one for one in found.output if not one.isprintable() and one != "\n"] == []
    if "--json" in arguments:
        for line in found.stdout.splitlines():
            json.loads(line)
    if arguments == ("show", "dead", "0:2", "--json"):
        (whole,) = lines(found)
        assert whole["headers"][0][0] == HOSTILE[:-1]


def test_letters_of_a_topic_that_was_made_again_are_not_taken_for_replayed(log: Log) -> None:
    assert dlq("replay", "dead", "--execute").exit_code == 0
    assert log.end_offsets("numbers") == {0: 2}
    log.delete_topic("dead")
    log.create_topic("dead")
    log.append({"dead": letters()[:1]})
    assert [one["replayed"] for one in lines(dlq("list", "dead", "--json"))] == [False]
    assert dlq("replay", "dead", "--execute").exit_code == 0
    assert dlq("replay", "dead", "--execute").exit_code == 0
    assert log.end_offsets("numbers") == {0: 3}


@pytest.mark.parametrize("size", [b"2000000", b"many", b"-1", b"\xff"])
def test_a_size_that_the_record_itself_came_with_holds_nothing_up(log: Log, size: bytes) -> None:
    first, second = letters()
    forged = first._replace(headers=(("thulawa.errors.size", size), *first.headers))
    log.append({"dead": [forged, second]})
    assert dlq("replay", "dead", "--execute").exit_code == 0
    assert log.end_offsets("numbers") == {0: 4}
