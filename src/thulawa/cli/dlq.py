"""``thulawa dlq``: list dead letters, and send them back to the topics they came from.

Letters are sent back in one transaction with their position in the dead-letter topic, so that each
one goes back once, however often and wherever the command is interrupted.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from rich.markup import escape

from thulawa.brokers.port import Broker, WriterId, read_to_end
from thulawa.cli.console import (
    FAILED,
    Json,
    LogAddress,
    broker_at,
    explained,
    print_json,
    print_table,
)
from thulawa.cli.lines import as_text, from_bytes, visible
from thulawa.core.markers import LastBatch
from thulawa.core.types import ProducerRecord
from thulawa.errors import ConfigurationError
from thulawa.runtime.dead_letter_records import DeadLetterRecord, ReplayRejection

app = typer.Typer(
    help="List dead letters, and send them back to the topics they came from.",
    no_args_is_help=True,
)

Topic = Annotated[str, typer.Argument(help="The dead-letter topic.", show_default=False)]
_APPLICATION = "thulawa-dlq"
_ERROR_HEADERS = ("exception", "message", "node", "topic", "partition", "offset")


@dataclass(frozen=True, slots=True)
class _Letters:
    """The letters of one dead-letter topic; ``replayed`` has the last offset of each partition."""

    writer: WriterId
    letters: list[DeadLetterRecord]
    replayed: dict[int, int]

    def is_replayed(self, letter: DeadLetterRecord) -> bool:
        return letter.offset <= self.replayed.get(letter.partition, -1)

    def fields(self, letter: DeadLetterRecord) -> dict[str, Any]:
        """Return what ``list --json`` shows of a letter."""
        return {
            "letter": letter.place,
            "timestamp": letter.timestamp,
            **{name: letter.error_header(name) for name in _ERROR_HEADERS},
            "key": from_bytes(letter.key),
            "replayed": self.is_replayed(letter),
        }


def _read(broker: Broker, topic: str) -> _Letters:
    """Read all letters but those of transactions that are still open."""
    # with the topic's id: the letters of a topic that is created again have not been sent back
    identity = broker.describe(topic).id
    writer = WriterId(
        application=_APPLICATION,
        name=topic,
        query="replay" if identity is None else f"replay/{identity}",
        log_key=f"{_APPLICATION}/{topic}/{identity}",
    )
    replayed = {partition: last.number for partition, last in broker.markers(writer).items()}
    letters = [DeadLetterRecord(*record[1:]) for record in read_to_end(broker, topic)]
    return _Letters(writer, letters, replayed)


@app.command("list")
@explained
def list_letters(topic: Topic, log: LogAddress = "topics", json_lines: Json = False) -> None:
    """List the letters of a topic: position, error, origin and key."""
    with broker_at(log) as broker:
        found = _read(broker, topic)
    if json_lines:
        print_json(found.fields(letter) for letter in found.letters)
        return
    print_table(
        ("letter", "exception", "message", "from", "key", "done"),
        (
            [
                letter.place,
                *(escape(visible(letter.error_header(name))) for name in ("exception", "message")),
                escape(visible(letter.origin)),
                escape(as_text(letter.key)),
                "yes" if found.is_replayed(letter) else "",
            ]
            for letter in found.letters
        ),
    )


@app.command()
@explained
def show(
    topic: Topic,
    letter: Annotated[str, typer.Argument(help="Which one: partition:offset.")],
    log: LogAddress = "topics",
    json_lines: Json = False,
) -> None:
    """Show all of one letter: its record, and the error with the stack trace."""
    partition, colon, offset = letter.partition(":")
    if not (colon and partition.isdecimal() and offset.isdecimal()):
        raise ConfigurationError(f"{letter!r} is no letter; write partition:offset, as in 0:17")
    with broker_at(log) as broker:
        found = _read(broker, topic)
    position = int(partition), int(offset)
    one = next((one for one in found.letters if (one.partition, one.offset) == position), None)
    if one is None:
        raise ConfigurationError(f"there is no letter {letter} in {topic}; see thulawa dlq list")
    stack_trace = one.error_header("stacktrace")
    if json_lines:
        headers = [[name, from_bytes(value)] for name, value in one.original_headers]
        more = {"value": from_bytes(one.value), "headers": headers, "stacktrace": stack_trace}
        print_json([found.fields(one) | more])
        return
    for name, text in (
        ("letter", one.place),
        ("from", one.origin),
        *((name, one.error_header(name)) for name in ("node", "exception", "message")),
        ("key", as_text(one.key)),
        ("value", as_text(one.value)),
        *((f"header {name}", as_text(value)) for name, value in one.original_headers),
        ("done", "yes" if found.is_replayed(one) else "no"),
    ):
        typer.echo(f"{visible(name):>10}  {visible(text)}")
    for line in stack_trace.split("\n"):
        typer.echo(visible(line))


@app.command()
@explained
def replay(
    topic: Topic,
    execute: Annotated[
        bool, typer.Option("--execute/--dry-run", help="Send them, or only print the plan.")
    ] = False,
    to: Annotated[
        str | None, typer.Option(help="Another topic than the one each came from.")
    ] = None,
    skip: Annotated[
        bool, typer.Option("--skip", help="Leave out for good what cannot be sent back.")
    ] = False,
    log: LogAddress = "topics",
    json_lines: Json = False,
) -> None:
    """Send letters back to the topics they came from, each once, as they were before they failed.

    Letters that were sent back before are left out. A letter that cannot be sent back keeps those
    behind it in its partition waiting, and the exit code is 1; with --skip it is left out for good.
    """
    with broker_at(log) as broker:
        letters = _read(broker, topic)
        plans = list(_plans(broker, letters, to, skip=skip))
        for plan in plans:
            if execute and plan.last is not None:
                _send(broker, letters.writer, plan, LastBatch(plan.last))
            plan.report(executed=execute, as_json=json_lines)
    count = sum(len(plan.letters) for plan in plans)
    done = f"{count} sent back" if execute else f"{count} would be sent back"
    rejected = sum(len(plan.rejected) for plan in plans)
    if skip and rejected:
        done += f", {rejected} left out for good"
    typer.echo(done if execute else f"{done}; add --execute", err=True)
    if rejected and not skip:
        raise typer.Exit(FAILED)


@dataclass(slots=True)
class _Plan:
    """The letters of one partition with their destinations, up to the offset ``last``."""

    partition: int
    letters: list[tuple[str, DeadLetterRecord]] = field(default_factory=list)
    rejected: list[tuple[DeadLetterRecord, ReplayRejection]] = field(default_factory=list)
    last: int | None = None

    def report(self, *, executed: bool, as_json: bool) -> None:
        """Print what is done with each letter."""
        if as_json:
            print_json(
                {"letter": one.place, "to": topic, "done": executed} for topic, one in self.letters
            )
            print_json(
                {"letter": one.place, "to": None, "done": False, "reason": rejection.reason}
                for one, rejection in self.rejected
            )
            return
        done = "sent back" if executed else "would be sent back"
        for topic, one in self.letters:
            typer.echo(f"{one.place}  {done} to {topic}")
        for one, rejection in self.rejected:
            typer.echo(f"{one.place}  cannot be sent back: {visible(rejection.reason)}")


def _send(broker: Broker, writer: WriterId, plan: _Plan, batch: LastBatch) -> None:
    """Send the letters to their topics, and store the position in the same transaction."""
    with broker.transaction(writer, plan.partition, batch) as transaction:
        for topic, one in plan.letters:
            record = ProducerRecord(one.key, one.value, one.original_headers, one.timestamp)
            transaction.write(topic, [record])


def _plans(broker: Broker, found: _Letters, to: str | None, *, skip: bool) -> Iterator[_Plan]:
    waiting: dict[int, list[DeadLetterRecord]] = {}
    for letter in found.letters:
        if not found.is_replayed(letter):
            waiting.setdefault(letter.partition, []).append(letter)
    origins = {one.error_header("topic") for letters in waiting.values() for one in letters}
    existing = broker.partitions(*({to} if to else origins - {""}))
    for partition, letters in sorted(waiting.items()):
        plan = _Plan(partition)
        for letter in letters:
            destination = letter.destination(to, existing)
            if isinstance(destination, ReplayRejection):
                plan.rejected.append((letter, destination))
                if not skip:
                    break
            else:
                plan.letters.append((destination, letter))
            plan.last = letter.offset
        yield plan
