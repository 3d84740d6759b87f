"""`thulawa topics` on Kafka: the commands of the embedded log, at another address."""

import json
import os

import pytest
from typer.testing import CliRunner, Result

from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.topics import Topics
from thulawa.cli import topic_commands
from thulawa.cli.commands import app


def topics_command(connection: Connection, *arguments: str) -> Result:
    log = f"kafka://{connection.bootstrap}"
    return CliRunner().invoke(app, ["topics", *arguments, "--log", log])


def test_a_topic_of_kafka_is_created_written_listed_and_read(
    connection: Connection, topics: Topics, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = ("create", name, "--partitions", "2", "--keep", "1 hour")
    assert topics_command(connection, *create).exit_code == 0
    assert topics_command(connection, *create).exit_code == 0, "it exists as it is wanted"
    assert topics_command(connection, "create", name, "--partitions", "3").exit_code == 1
    assert topics.settings(name)["retention.ms"] == "3600000"
    reading, writing = os.pipe()
    os.write(writing, b"a:1\nb:2\na:3\n")
    os.close(writing)
    monkeypatch.setattr(topic_commands, "_stdin", lambda: reading)
    written = topics_command(connection, "produce", name)
    os.close(reading)
    assert written.stderr == f"3 record(s) written to {name}\n"
    listed = topics_command(connection, "list", "--json").stdout.splitlines()
    (row,) = (row for row in map(json.loads, listed) if row["topic"] == name)
    assert (row["partitions"], row["records"], row["bytes"]) == (2, 3, None)
    assert name in topics_command(connection, "list").stdout
    tailed = topics_command(connection, "tail", name, "--json").stdout.splitlines()
    values = sorted((row["key"], row["value"]) for row in map(json.loads, tailed))
    assert values == [("a", "1"), ("a", "3"), ("b", "2")]
    (last,) = topics_command(connection, "tail", name, "-n", "1").stdout.splitlines()
    assert last.endswith(("a  3", "b  2", "a  1"))
    assert topics_command(connection, "tail", f"{name}-none").exit_code == 1
