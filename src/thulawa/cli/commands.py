"""The commands of ``thulawa``."""

from dataclasses import asdict
from typing import Annotated

import typer

import thulawa
from thulawa.cli import dlq, kafka_commands, programs, topic_commands
from thulawa.cli.console import EXIT_CODES, FAILED, Json, print_json, print_table
from thulawa.cli.doctor import examine

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
        print_json(map(asdict, findings))
    else:
        signs = {
            "ok": "[green]ok[/]",
            "missing": "[bold red]missing[/]",
            "optional": "[yellow]optional[/]",
        }
        rows = [(one.what, signs[one.state], one.found, one.advice) for one in findings]
        print_table(("", "", "found", "what to do"), rows)
    if any(finding.state == "missing" for finding in findings):
        raise typer.Exit(FAILED)
