"""``thulawa kafka``: a broker for development on this machine."""

import json
import os
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.topics import reachable
from thulawa.cli.exit_codes import explained
from thulawa.dev.kafka_broker import DevBroker, Status, brokers
from thulawa.dev.maven import JarSet, fetched
from thulawa.errors import ConfigurationError

__all__ = ["app"]

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
    down --remove. Where THULAWA_KAFKA gives a broker, that one is used and nothing is started.
    """
    if given := os.environ.get("THULAWA_KAFKA"):
        reachable(Connection.of(given))
        typer.echo(given)
        return
    _refuse_differences(DevBroker(name).status(), port, count)
    _tell_of_fetching("broker")
    broker = DevBroker(name, port=9092 if port is None else port, brokers=count or 1)
    typer.echo(broker.up().bootstrap)


def _refuse_differences(made: Status, port: int | None, count: int | None) -> None:
    ports = [address.rpartition(":")[2] for address in made.bootstrap.split(",")]
    if made.nodes and (port not in (None, 0, int(ports[0])) or count not in (None, made.nodes)):
        raise ConfigurationError(
            f"{made.name!r} was made with {made.nodes} broker(s) at {made.bootstrap}; leave --port "
            f"and --brokers out, take another --name, or begin anew: "
            f"thulawa kafka down --name {made.name} --remove"
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
def status(
    json_lines: Annotated[bool, typer.Option("--json", help="One JSON object per row.")] = False,
) -> None:
    """Show the brokers that were started on this machine."""
    found = [broker.status() for broker in brokers()]
    if json_lines:
        for one in found:
            typer.echo(json.dumps(asdict(one)))
        return
    table = Table("name", "address", "running", "folder")
    for one in found:
        table.add_row(one.name, one.bootstrap, f"{one.running} of {one.nodes}", one.folder)
    Console().print(table)


def _tell_of_fetching(jars: JarSet) -> None:
    if not fetched(jars):
        typer.echo(f"fetching the jars of the {jars} with Maven: once, some minutes", err=True)
