"""The commands of ``thulawa``."""

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import thulawa
from thulawa.cli import dlq, kafka_commands, programs, topic_commands
from thulawa.cli.doctor import examine
from thulawa.cli.exit_codes import EXIT_CODES, FAILED

__all__ = ["app"]

app = typer.Typer(
    name="thulawa",
    help="Many keys of one partition at once, each key in order, nothing lost.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",  # else paragraphs are broken as in the docstring
)
app.add_typer(topic_commands.app, name="topics")
app.add_typer(kafka_commands.app, name="kafka")
app.add_typer(dlq.app, name="dlq")
programs.add_to(app)

Json = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Handle the options that belong to no command."""
    if version:
        typer.echo(thulawa.__version__)
        raise typer.Exit


@app.command(epilog=EXIT_CODES)
def doctor(json_lines: Json = False) -> None:
    """Show what Thulawa needs on this machine and does not find, and how to install it."""
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
