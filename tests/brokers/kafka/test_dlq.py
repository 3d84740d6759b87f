"""Dead letters in Kafka, from the command line."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.brokers.conftest import PASSWORDS
from tests.brokers.kafka.helpers import out, read
from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.routing import Policies
from thulawa.brokers.kafka.topics import Topics
from thulawa.brokers.kafka.transactions import SinkBatch, SinkSpec, write
from thulawa.cli.commands import app
from thulawa.dev.kafka_broker import DevBroker
from thulawa.errors import ConfigurationError


def dlq(connection: Connection, *arguments: str) -> Result:
    return CliRunner().invoke(
        app, ["dlq", *arguments, "--log", f"kafka://{connection.bootstrap}", "--json"]
    )


def test_a_letter_of_the_sink_goes_back_once_when_its_topic_is_there(
    connection: Connection, topics: Topics, name: str
) -> None:
    dead = f"{name}-dead"
    topics.ensure(dead)
    policies = Policies(missing="dead_letter", dead_letter=dead)
    sink = SinkSpec(connection=connection, application=f"app-{name}", policies=policies)
    write(sink, SinkBatch("q", 0, 0), [out(name, [7, 8])])

    first, second = (json.loads(line) for line in dlq(connection, "list", dead).stdout.splitlines())
    assert (first["exception"], first["topic"]) == ("UnknownTopic", name)
    assert dlq(connection, "replay", dead, "--execute").exit_code == 1
    topics.ensure(name)
    assert dlq(connection, "replay", dead).exit_code == 0
    assert read(connection, name) == []

    sent = dlq(connection, "replay", dead, "--execute")
    assert [json.loads(line)["to"] for line in sent.stdout.splitlines()] == [name, name]
    assert dlq(connection, "replay", dead, "--execute").stdout == ""
    back = [(m.key(), m.value(), m.timestamp()[1], m.headers()) for m in read(connection, name)]
    assert back == [(b"key-0", b"7", 1_007, None), (b"key-1", b"8", 1_008, None)]
    shown = json.loads(dlq(connection, "show", dead, second["letter"]).stdout)
    assert (shown["value"], shown["replayed"]) == ("8", True)


def test_a_broker_that_wants_a_password_gets_it_from_a_file(
    broker: DevBroker, topics: Topics, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics.ensure(name)
    secured = broker.secured("ann", PASSWORDS["ann"])
    file = tmp_path / "kafka.properties"
    told = "".join(f"{setting} = {value}\n" for setting, value in secured.settings.items())
    file.write_text(f"# what every client needs\n\n{told}")
    monkeypatch.setenv("THULAWA_KAFKA_SETTINGS", str(file))
    assert Connection.of(secured.bootstrap) == secured
    assert dlq(secured, "list", name).exit_code == 0


def test_a_file_of_settings_is_read_or_its_fault_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "kafka.properties"
    monkeypatch.setenv("THULAWA_KAFKA_SETTINGS", str(file))
    with pytest.raises(ConfigurationError, match=r"THULAWA_KAFKA_SETTINGS: .*kafka\.properties"):
        Connection.of("a:1")
    file.write_text("client.id=me\nsecret\n")
    with pytest.raises(ConfigurationError, match="line 2: write name=value"):
        Connection.of("a:1")
