"""``thulawa dlq``: look at dead letters, and send them back where they came from."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from thulawa.cli.exit_codes import FAILED, explained
from thulawa.cli.letters import Letters, letters_at
from thulawa.cli.lines import json_line, shown, visible, written
from thulawa.errors import ConfigurationError
from thulawa.runtime.dead_letter_records import DeadLetterRecord, ReplayRejection

__all__ = ["app"]

app = typer.Typer(
    help="Look at dead letters, and send them back where they came from.", no_args_is_help=True
)

Topic = Annotated[str, typer.Argument(help="The dead-letter topic.", show_default=False)]
Where = Annotated[
    str,
    typer.Option(
        "--log", envvar="THULAWA_LOG", help="The folder of an embedded log, or kafka://host:port."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]
_FACTS = ("exception", "message", "node", "topic", "partition", "offset")


@app.command("list")
@explained
def list_letters(topic: Topic, log: Where = "topics", json_lines: Json = False) -> None:
    """List the letters of a topic: where each stands, what happened, where it came from."""
    with letters_at(log, topic) as letters:
        done = letters.replayed()
        found = [(one, _is_done(one, done)) for one in letters.read()]
    if json_lines:
        for one, replayed in found:
            typer.echo(json_line(_row(one, replayed=replayed)))
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("letter", "exception", "message", "from", "key", "done"):
        table.add_column(name)
    for one, replayed in found:
        table.add_row(
            one.place,
            visible(one.error_header("exception")),
            visible(one.error_header("message")),
            visible(one.origin),
            shown(one.key),
            "yes" if replayed else "",
        )
    Console(highlight=False, markup=False).print(table)


@app.command()
@explained
def show(
    topic: Topic,
    letter: Annotated[str, typer.Argument(help="Which one: partition:offset.")],
    log: Where = "topics",
    json_lines: Json = False,
) -> None:
    """Show all of one letter: its record, and what happened, with the stack trace."""
    partition, offset = _place(letter)
    with letters_at(log, topic) as letters:
        done = letters.replayed()
        for one in letters.read():
            if (one.partition, one.offset) == (partition, offset):
                _print(one, replayed=_is_done(one, done), as_json=json_lines)
                return
    raise ConfigurationError(f"there is no letter {letter} in {topic}; see thulawa dlq list")


def _print(one: DeadLetterRecord, *, replayed: bool, as_json: bool) -> None:
    if as_json:
        typer.echo(json_line(_whole(one, replayed=replayed)))
        return
    for name, text in (
        ("letter", one.place),
        ("from", one.origin),
        ("node", one.error_header("node")),
        ("exception", one.error_header("exception")),
        ("message", one.error_header("message")),
        ("key", shown(one.key)),
        ("value", shown(one.value)),
        *((f"header {name}", shown(value)) for name, value in one.original_headers),
        ("done", "yes" if replayed else "no"),
    ):
        typer.echo(f"{visible(name):>10}  {visible(text)}")
    for line in one.error_header("stacktrace").split("\n"):
        typer.echo(visible(line))


@app.command()
@explained
def replay(
    topic: Topic,
    execute: Annotated[
        bool, typer.Option("--execute/--dry-run", help="Do it, or only say what would be done.")
    ] = False,
    to: Annotated[
        str | None, typer.Option(help="Another topic than the one each came from.")
    ] = None,
    skip: Annotated[
        bool, typer.Option("--skip", help="Leave out for good what cannot be sent back.")
    ] = False,
    log: Where = "topics",
    json_lines: Json = False,
) -> None:
    """Send letters back to the topics they came from, each once, as they were before they failed.

    What was sent back before is left out. A letter that cannot be sent back keeps those behind it
    in its partition waiting, and the exit code is 1; with --skip it is left out for good.
    """
    with letters_at(log, topic) as letters:
        plans = list(_planned(letters, to, skip=skip))
        for plan in plans:
            if execute and plan.last is not None:
                letters.send(plan.partition, plan.letters, plan.last)
            _tell(plan, execute=execute, as_json=json_lines)
    count = sum(len(plan.letters) for plan in plans)
    done = f"{count} sent back" if execute else f"{count} would be sent back"
    if skip and (left_out := sum(len(plan.refused) for plan in plans)):
        done += f", {left_out} left out for good"
    typer.echo(done if execute else f"{done}; add --execute", err=True)
    if not skip and any(plan.refused for plan in plans):
        raise typer.Exit(FAILED)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What becomes of one partition: letters with their topics, up to the offset ``last``."""

    partition: int
    letters: list[tuple[str, DeadLetterRecord]]
    refused: list[tuple[DeadLetterRecord, ReplayRejection]]
    last: int | None


def _planned(letters: Letters, to: str | None, *, skip: bool) -> Iterable[_Plan]:
    done = letters.replayed()
    waiting: dict[int, list[DeadLetterRecord]] = {}
    for one in letters.read():
        if not _is_done(one, done):
            waiting.setdefault(one.partition, []).append(one)
    wanted = (
        {to} if to else {one.error_header("topic") for some in waiting.values() for one in some}
    )
    topics = letters.existing(wanted - {"", None})
    for partition, some in sorted(waiting.items()):
        plan = _Plan(partition, [], [], None)
        last = None
        for one in some:
            goes = one.destination(to, topics)
            if isinstance(goes, ReplayRejection):
                plan.refused.append((one, goes))
                if not skip:
                    break
            else:
                plan.letters.append((goes, one))
            last = one.offset
        yield replace(plan, last=last)


def _tell(plan: _Plan, *, execute: bool, as_json: bool) -> None:
    done = "sent back" if execute else "would be sent back"
    for topic, one in plan.letters:
        if as_json:
            typer.echo(json_line({"letter": one.place, "to": topic, "done": execute}))
        else:
            typer.echo(f"{one.place}  {done} to {topic}")
    for one, refusal in plan.refused:
        if as_json:
            told = {"letter": one.place, "to": None, "done": False, "reason": refusal.reason}
            typer.echo(json_line(told))
        else:
            typer.echo(f"{one.place}  cannot be sent back: {visible(refusal.reason)}")


def _is_done(one: DeadLetterRecord, done: dict[int, int]) -> bool:
    return one.offset <= done.get(one.partition, -1)


def _place(text: str) -> tuple[int, int]:
    partition, colon, offset = text.partition(":")
    if not (colon and partition.isdecimal() and offset.isdecimal()):
        raise ConfigurationError(f"{text!r} is no letter; write partition:offset, as in 0:17")
    return int(partition), int(offset)


def _row(one: DeadLetterRecord, *, replayed: bool) -> dict[str, Any]:
    return {
        "letter": one.place,
        "timestamp": one.timestamp,
        **{name: one.error_header(name) for name in _FACTS},
        "key": written(one.key),
        "replayed": replayed,
    }


def _whole(one: DeadLetterRecord, *, replayed: bool) -> dict[str, Any]:
    return _row(one, replayed=replayed) | {
        "value": written(one.value),
        "headers": [[name, written(value)] for name, value in one.original_headers],
        "stacktrace": one.error_header("stacktrace"),
    }
