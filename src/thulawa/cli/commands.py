"""What the ``thulawa`` command can do."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import thulawa
from thulawa.cli import demo as demonstration
from thulawa.cli import kafka
from thulawa.cli.doctor import examine

__all__ = ["app"]

app = typer.Typer(
    name="thulawa",
    help="Many keys of one partition at once, each key in order, nothing lost.",
    no_args_is_help=True,
    add_completion=False,
)
app.add_typer(kafka.app, name="kafka")


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Hold the options that belong to no command."""
    if version:
        typer.echo(thulawa.__version__)
        raise typer.Exit


@app.command()
def demo(
    latency: Annotated[
        list[int] | None,
        typer.Option(help="Milliseconds a lookup takes; repeat for several.", min=0, max=10_000),
    ] = None,
    rate: Annotated[float, typer.Option(help="Visits that arrive a second.", min=1)] = 215,
    seconds: Annotated[float, typer.Option(help="How long each run lasts.", min=1)] = 8,
    keys: Annotated[int, typer.Option(help="Visitors, each a key.", min=1)] = 1_000,
    json_lines: Annotated[bool, typer.Option("--json", help="One JSON object per row.")] = False,
    picture: Annotated[Path, typer.Option(help="Where the picture goes (SVG).")] = Path(
        "thulawa-demo.svg"
    ),
) -> None:
    """Enrich visits by a slow lookup service: one at a time, and with Thulawa.

    One partition, a real HTTP service on this machine, visits arriving at a steady rate. Ends
    with the table of the Thulawa paper beside what was measured now, and a picture of it.
    """
    job = demonstration.Job(
        latencies=tuple(latency or (5, 20, 250)), rate=rate, seconds=seconds, keys=keys
    )
    console = Console(stderr=json_lines)
    rows = demonstration.run(job, console)
    if json_lines:
        for row in rows:
            typer.echo(json.dumps(row.as_json()))
    demonstration.show(rows, job, console)
    demonstration.draw(rows, job, picture)
    console.print(f"Picture: {picture}")


@app.command()
def doctor(
    json_lines: Annotated[bool, typer.Option("--json", help="One JSON object per row.")] = False,
) -> None:
    """Say what this machine lacks for Thulawa, and how to get it.

    Exit code 0: nothing that is needed is missing; 1: something is.
    """
    findings = list(examine())
    if json_lines:
        for finding in findings:
            typer.echo(json.dumps(asdict(finding)))
    else:
        signs = {"ok": "[green]ok[/green]", "missing": "[red]missing[/red]", "optional": "optional"}
        table = Table("what", "state", "found", "what to do")
        for finding in findings:
            table.add_row(finding.what, signs[finding.state], finding.found, finding.advice)
        Console().print(table)
    raise typer.Exit(any(finding.state == "missing" for finding in findings))
