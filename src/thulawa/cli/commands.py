"""What the ``thulawa`` command can do."""

import json
import platform
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime
from os import cpu_count
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import thulawa
from thulawa.cli import demo as demonstration
from thulawa.cli import dlq, kafka, programs, topics
from thulawa.cli.display import Display, results
from thulawa.cli.doctor import examine, spark_s_needs
from thulawa.cli.failures import EXIT_CODES, FAILED, explained
from thulawa.cli.picture import check_writable, draw
from thulawa.cli.quiet import noise_to, tail
from thulawa.core.errors import ConfigurationError

__all__ = ["app"]

app = typer.Typer(
    name="thulawa",
    help="Many keys of one partition at once, each key in order, nothing lost.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",  # fills paragraphs, where they are broken as in the docstring else
)
app.add_typer(topics.app, name="topics")
app.add_typer(kafka.app, name="kafka")
app.add_typer(dlq.app, name="dlq")
programs.add_to(app)

Json = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Hold the options that belong to no command."""
    if version:
        typer.echo(thulawa.__version__)
        raise typer.Exit


@app.command(epilog=EXIT_CODES)
@explained
def demo(
    latency: Annotated[
        list[int] | None,
        typer.Option(
            help="Milliseconds a lookup takes; repeat for several.",
            min=0,
            max=10_000,
            show_default="5, 20, 250",
        ),
    ] = None,
    rate: Annotated[float, typer.Option(help="Visits that arrive a second.", min=1)] = 215,
    seconds: Annotated[
        float, typer.Option(help="How long to measure, and 60 lookups more.", min=1)
    ] = 6,
    keys: Annotated[int, typer.Option(help="Visitors, each a key.", min=1)] = 1_000,
    json_lines: Json = False,
    picture: Annotated[Path, typer.Option(help="Where the picture goes (SVG).")] = Path(
        "thulawa-demo.svg"
    ),
) -> None:
    """Enrich visits by a slow lookup service: one at a time, with a Spark UDF, with Thulawa.

    Spark, one partition of an embedded log, a real HTTP service on this machine, visits arriving
    at a steady rate. Ends with the table of the Thulawa paper beside what was measured now, and a
    picture of it.
    """
    job = demonstration.Job(
        latencies=tuple(dict.fromkeys(latency or (5, 20, 250))),
        rate=rate,
        seconds=seconds,
        keys=keys,
    )
    try:
        check_writable(picture)
    except OSError as error:
        raise ConfigurationError(f"--picture: {error}") from error
    rows = _demonstrate(job, json_lines=json_lines)
    console = Console(stderr=json_lines, highlight=False)
    console.print(results(rows, job))
    draw(rows, job, picture, _here())
    console.print(f"Picture: {picture}", soft_wrap=True)


def _demonstrate(job: demonstration.Job, *, json_lines: bool) -> list[demonstration.Row]:
    lacking = [f"{one.what}: {one.found}; {one.advice}" for one in spark_s_needs()]
    if lacking:
        raise demonstration.DemoFailed("\n".join(lacking))
    with tempfile.TemporaryDirectory(prefix="thulawa-demo-", ignore_cleanup_errors=True) as name:
        noise = Path(name, "noise.log")
        width = Console(stderr=True).width  # asked for before the terminal is out of sight
        with noise_to(noise) as (out, err):
            console = Console(file=err, width=width)
            display = Display(job, console, out if json_lines else None)
            try:
                with display.shown():
                    return demonstration.run(job, Path(name), display)
            except Exception as error:
                said = f"\nSpark said:\n{tail(noise)}" if tail(noise) else ""
                raise demonstration.DemoFailed(f"{error}{said}") from error


def _here() -> str:
    today = datetime.now(UTC).date().isoformat()
    python = platform.python_version()
    return f"{cpu_count()} cores, Python {python}, thulawa {thulawa.__version__}, {today}"


@app.command(epilog=EXIT_CODES)
def doctor(json_lines: Json = False) -> None:
    """Say what this machine lacks for Thulawa, and how to get it."""
    findings = list(examine())
    if json_lines:
        for finding in findings:
            typer.echo(json.dumps(asdict(finding)))
    else:
        signs = {
            "ok": "[green]ok[/]",
            "missing": "[bold red]missing[/]",
            "optional": "[yellow]optional[/]",
        }
        table = Table("", "", "found", "what to do", box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for finding in findings:
            table.add_row(finding.what, signs[finding.state], finding.found, finding.advice)
        Console(highlight=False).print(table)
    if any(finding.state == "missing" for finding in findings):
        raise typer.Exit(FAILED)
