"""``thulawa kafka``: a broker for development on this machine."""

import os
from dataclasses import asdict
from typing import Annotated

import typer

from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.topics import reachable
from thulawa.cli.console import Json, explained, print_json, print_table
from thulawa.dev.kafka_broker import DevBroker, brokers
from thulawa.dev.maven import fetched
from thulawa.errors import ConfigurationError

app = typer.Typer(help="A Kafka broker for development on this machine.", no_args_is_help=True)

Name = Annotated[str, typer.Option(help="Which broker; several can run side by side.")]


@app.command()
@explained
def up(
    name: Name = "default",
    port: Annotated[
        int | None,
        typer.Option(help="Of the first broker; 0: any.", min=0, show_default="9092"),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option("--brokers", help="How many.", min=1, max=9, show_default="1"),
    ] = None,
) -> None:
    """Start Apache Kafka on loopback, or leave it running; print its address.

    The first time its jars are fetched with Maven. Its data, port and number of brokers stay until
    down --remove. If THULAWA_KAFKA names a broker, that one is used and nothing is started.
    """
    if given := os.environ.get("THULAWA_KAFKA"):
        reachable(Connection.of(given))
        typer.echo(given)
        return
    _check_settings(name, port, count)
    if not fetched("broker"):
        typer.echo("fetching the jars of the broker with Maven: once, some minutes", err=True)
    broker = DevBroker(name, port=9092 if port is None else port, brokers=count or 1)
    typer.echo(broker.up().bootstrap)


def _check_settings(name: str, port: int | None, count: int | None) -> None:
    """Raise if the broker exists with another port or number of brokers."""
    existing = DevBroker(name).status()
    first = existing.bootstrap.partition(",")[0].rpartition(":")[2]
    if existing.nodes and (
        port not in (None, 0, int(first)) or count not in (None, existing.nodes)
    ):
        raise ConfigurationError(
            f"{name!r} was created with {existing.nodes} broker(s) at {existing.bootstrap}; remove "
            "--port and --brokers, choose another --name, or delete its data: "
            f"thulawa kafka down --name {name} --remove"
        )


@app.command()
@explained
def down(
    name: Name = "default",
    remove: Annotated[bool, typer.Option("--remove", help="Delete its data too.")] = False,
) -> None:
    """Stop a broker cleanly; nothing happens when it does not run."""
    DevBroker(name).down(remove=remove)


@app.command()
@explained
def status(json_lines: Json = False) -> None:
    """Show the brokers that were started on this machine."""
    found = [broker.status() for broker in brokers()]
    if json_lines:
        print_json(map(asdict, found))
        return
    rows = [(one.name, one.bootstrap, f"{one.running} of {one.nodes}", one.folder) for one in found]
    print_table(("name", "address", "running", "folder"), rows)
