"""``thulawa kafka``: a broker for development on this machine, and the connector's jars."""

import json
import os
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from thulawa.cli.failures import explained
from thulawa.kafka.broker import Broker, brokers
from thulawa.kafka.connection import Connection
from thulawa.kafka.maven import connector_jars
from thulawa.kafka.topics import reachable

__all__ = ["app"]

app = typer.Typer(help="A Kafka broker for development on this machine.", no_args_is_help=True)

Name = Annotated[str, typer.Option(help="Which broker; several can run side by side.")]


@app.command()
@explained
def up(
    name: Name = "default",
    port: Annotated[int, typer.Option(help="Of the first broker; 0: any.", min=0)] = 9092,
    count: Annotated[int, typer.Option("--brokers", help="How many.", min=1, max=9)] = 1,
) -> None:
    """Start Apache Kafka on loopback, or leave it running; print its address.

    The first time its jars are fetched with Maven. Its data stays until ``down --remove``. Where
    THULAWA_KAFKA gives a broker, that one is used and nothing is started.
    """
    if given := os.environ.get("THULAWA_KAFKA"):
        reachable(Connection.of(given))
        typer.echo(given)
        return
    typer.echo(Broker(name, port=port, brokers=count).up().bootstrap)


@app.command()
@explained
def down(
    name: Name = "default",
    remove: Annotated[bool, typer.Option("--remove", help="Delete its data too.")] = False,
) -> None:
    """Stop a broker cleanly; nothing happens when it does not run."""
    Broker(name).down(remove=remove)


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


@app.command()
@explained
def jars() -> None:
    """Fetch the jars of Spark's Kafka connector, and print where they are."""
    for jar in connector_jars():
        typer.echo(str(jar))
