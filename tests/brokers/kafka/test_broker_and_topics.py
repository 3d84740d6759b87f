"""The broker for development, topics and groups; connections that show no secret."""

import json
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from tests.brokers.conftest import PASSWORDS
from tests.brokers.kafka.helpers import fill
from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.groups import commit_offsets, committed_offsets, lag
from thulawa.brokers.kafka.topics import Topics, TopicSpec, reachable
from thulawa.cli.commands import app
from thulawa.dev.kafka_broker import DevBroker, brokers
from thulawa.dev.maven import jars
from thulawa.errors import (
    AuthenticationFailed,
    BrokerFailed,
    BrokerUnreachable,
    ConfigurationError,
    ToolMissing,
    TopicDiffers,
    UnknownTopic,
)


def test_up_is_idempotent_and_others_see_the_broker(broker: DevBroker) -> None:
    before = broker.up().status()
    assert DevBroker(broker.name).up().status() == before
    assert before.name in [one.name for one in brokers()]
    assert before.running == before.nodes == 1


def test_a_broker_that_was_made_otherwise_is_not_taken_for_the_one_asked_for(
    broker: DevBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("THULAWA_KAFKA", raising=False)
    made = broker.up().bootstrap
    up = ["kafka", "up", "--name", broker.name]
    same = CliRunner().invoke(app, [*up, "--brokers", "1", "--port", made.rpartition(":")[2]])
    assert (same.exit_code, same.stdout) == (0, f"{made}\n")
    assert CliRunner().invoke(app, up).stdout == f"{made}\n"
    for option in (("--port", "9"), ("--brokers", "3")):
        other = CliRunner().invoke(app, [*up, *option])
        assert other.exit_code == 2
        assert f"1 broker(s) at {made}" in other.output


def test_the_doctor_sees_a_broker_that_was_started_here(
    broker: DevBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("THULAWA_KAFKA", raising=False)
    bootstrap = broker.up().bootstrap
    shown = CliRunner().invoke(app, ["doctor", "--json"]).stdout
    findings = {row["what"]: row for row in map(json.loads, shown.splitlines())}
    assert findings["Kafka broker"]["state"] == "ok"
    assert bootstrap in findings["Kafka broker"]["found"].split(", ")


def test_a_taken_port_is_named(broker: DevBroker) -> None:
    port = int(broker.up().bootstrap.rpartition(":")[2])
    with pytest.raises(BrokerFailed, match=rf"port {port} is taken; .* --port$"):
        DevBroker("tests-never-started", port=port).up()


def test_a_missing_java_or_maven_is_named(
    broker: DevBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("THULAWA_CACHE", str(tmp_path))
    with pytest.raises(ToolMissing, match="mvn"):
        jars("broker")


def test_a_wrong_password_is_told_from_silence(broker: DevBroker, connection: Connection) -> None:
    reachable(broker.secured("ann", PASSWORDS["ann"]))
    with pytest.raises(AuthenticationFailed, match="Invalid username or password"):
        reachable(broker.secured("ann", "wrong"))
    with pytest.raises(BrokerUnreachable, match="nobody answered"):
        reachable(Connection("127.0.0.1:1"), timeout=2)


def test_ensuring_a_topic_twice_makes_it_once_and_other_settings_are_refused(
    topics: Topics, name: str
) -> None:
    spec = TopicSpec(partitions=2, cleanup="compact")
    assert topics.ensure(name, spec)
    assert not topics.ensure(name, spec)
    with pytest.raises(TopicDiffers, match="2 partitions"):
        topics.ensure(name, TopicSpec(partitions=3, cleanup="compact"))
    with pytest.raises(TopicDiffers, match=r"cleanup\.policy"):
        topics.ensure(name, TopicSpec(partitions=2))
    topics.delete_topic(name)
    with pytest.raises(UnknownTopic):
        topics.end_offsets(name)


def test_a_deleted_topic_is_awaited_until_the_broker_no_longer_lists_it(
    topics: Topics, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics.ensure(name)
    real, listed = topics.partitions, iter([{name: 1}, {name: 1}])
    monkeypatch.setattr(topics, "partitions", lambda *names: next(listed, None) or real(*names))
    topics.delete_topic(name)
    assert next(listed, None) is None, "the answers that still listed it were waited out"
    assert real(name) == {}


def test_a_group_shows_committed_offsets_and_lag(
    topics: Topics, connection: Connection, name: str
) -> None:
    topics.ensure(name)
    fill(connection, name, range(10))
    commit_offsets(connection, f"{name}-group", {name: {0: 4}})
    assert committed_offsets(connection, f"{name}-group") == {name: {0: 4}}
    assert lag(connection, f"{name}-group") == {name: {0: 6}}


def test_a_connection_shows_no_secret() -> None:
    settings = {
        "sasl.username": "ann", "sasl.password": "s3cret", "ssl.key.password": "s3cret",
        "sasl.oauthbearer.assertion.private.key.passphrase": "s3cret",
    }  # fmt: skip
    connection = Connection("kafka://one:9092,two:9092", settings)
    assert "s3cret" not in repr(connection)
    assert connection.client()["bootstrap.servers"] == "one:9092,two:9092"
    assert connection.client()["sasl.password"] == "s3cret"


@pytest.mark.parametrize("address", ["localhost", "localhost:", "a:1,b", "http://x"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match="address"):
        Connection(address)


@pytest.mark.parametrize("use", [Topics, reachable])
def test_a_setting_that_the_client_does_not_know_is_refused(
    use: Callable[[Connection], object],
) -> None:
    with pytest.raises(ConfigurationError, match=r'No such .* "no\.such"'):
        use(Connection("localhost:1", {"no.such": "1"}))
