"""``thulawa topics``: look at and write to the topics of an embedded log."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from thulawa.brokers.embedded import ConsumerRecord, Log, Retention, TopicDescription
from thulawa.cli.exit_codes import explained
from thulawa.cli.lines import as_json, as_line, parse
from thulawa.core.durations import milliseconds
from thulawa.errors import ConfigurationError

__all__ = ["app"]

app = typer.Typer(help="Look at and write to the topics of an embedded log.", no_args_is_help=True)

LogFolder = Annotated[
    str, typer.Option("--log", envvar="THULAWA_LOG", help="The folder that holds the log.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]
Topic = Annotated[str, typer.Argument(help="The topic.", show_default=False)]

_CHUNK = 1 << 16
_WAIT = 0.5


def open_log(folder: str) -> Log:
    """Open the log at a folder, or at an address."""
    return Log(folder if folder.startswith("file:") or "://" in folder else f"file:{folder}")


@app.command("list")
@explained
def list_topics(log: LogFolder = "topics", json_lines: Json = False) -> None:
    """List the topics with their partitions, records and sizes."""
    with open_log(log) as opened:
        described = [opened.describe(name) for name in opened.topics()]
    rows = [_row(one) for one in described]
    if json_lines:
        _print_json(rows)
    elif not rows:
        typer.echo(
            f"no topics in {log}; make one: thulawa topics create visits --log {log}", err=True
        )
    else:
        Console().print(_table(rows))


def _row(topic: TopicDescription) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "partitions": len(topic.partitions),
        "records": sum(partition.records for partition in topic.partitions),
        "bytes": sum(partition.bytes for partition in topic.partitions),
        "cleanup": "compact" if topic.compact else "delete",
        "offsets": {str(one.number): [one.start, one.end] for one in topic.partitions},
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("topic")
    for name in ("partitions", "records", "bytes"):
        table.add_column(name, justify="right")
    table.add_column("cleanup")
    for row in rows:
        figures = (f"{row[name]:,}" for name in ("partitions", "records", "bytes"))
        table.add_row(row["topic"], *figures, row["cleanup"])
    return table


@app.command()
@explained
def create(
    topic: Topic,
    partitions: Annotated[int, typer.Option(help="How many partitions.")] = 1,
    compact: Annotated[
        bool, typer.Option("--compact", help="Keep each key's last record.")
    ] = False,
    keep: Annotated[
        str | None, typer.Option(help="Keep records for so long: '7 days', '12h'.")
    ] = None,
    log: LogFolder = "topics",
) -> None:
    """Create a topic; one with the same settings is left as it is."""
    age = None if keep is None else milliseconds(keep, name="--keep") / 1000
    with open_log(log) as opened:
        made = opened.create_topic(
            topic, partitions=partitions, compact=compact, retention=Retention(seconds=age)
        )
    typer.echo(f"{made.name}: {len(made.partitions)} partition(s)", err=True)


@app.command()
@explained
def tail(
    topic: Topic,
    count: Annotated[int, typer.Option("-n", "--records", help="The last so many.", min=0)] = 10,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until Ctrl-C.")] = False,
    log: LogFolder = "topics",
    json_lines: Json = False,
) -> None:
    """Print a topic's last records, oldest first: partition, offset, key, value.

    With several partitions, the last records of each are put in the order of their timestamps.
    """
    shape = as_json if json_lines else as_line
    with open_log(log) as opened, opened.consumer(topic, start="latest") as consumer:
        for record in _last(opened, topic, consumer.positions(), count):
            typer.echo(shape(record))
        try:
            while follow:
                for record in consumer.poll(timeout=_WAIT):
                    typer.echo(shape(record))
        except KeyboardInterrupt:
            pass  # this ends it


def _last(log: Log, topic: str, ends: dict[int, int], count: int) -> list[ConsumerRecord]:
    """Return the last records before these offsets; compaction may have left gaps."""
    starts = log.start_offsets(topic)
    found: list[ConsumerRecord] = []
    for partition, end in ends.items():
        reach, start = count, end
        records: list[ConsumerRecord] = []
        while count and len(records) < count and start > starts[partition]:
            start = max(starts[partition], end - reach)
            records = list(log.read(topic, partition, start, end))
            reach *= 4
        found += records[-count:] if count else []
    found.sort(key=lambda record: record.timestamp)
    return found[-count:] if count else []


@app.command()
@explained
def produce(
    topic: Topic,
    separator: Annotated[str, typer.Option(help="Between key and value.")] = ":",
    json_lines: Annotated[
        bool,
        typer.Option("--json", help="Each line is an object as `tail --json` prints it."),
    ] = False,
    log: LogFolder = "topics",
) -> None:
    """Write the lines of standard input to a topic, one record each.

    A line is key:value, or a value alone where there is no separator. The last thing printed is
    how many records are in the log; a line that cannot be read stops there.
    """
    written = 0
    with open_log(log) as opened, opened.producer() as producer:
        try:
            for number, line in enumerate(_lines(producer.flush), 1):
                try:
                    producer.send(topic, **parse(line, None if json_lines else separator))
                except ValueError as error:
                    raise ConfigurationError(f"line {number}: {error}") from error
                written = number
        finally:
            producer.flush()
            typer.echo(f"{written} record(s) written to {topic}", err=True)


def _lines(pause: Callable[[], object]) -> Iterator[str]:
    """Yield lines of standard input as they arrive; call ``pause`` before waiting for more."""
    rest = b""
    while chunk := os.read(_stdin(), _CHUNK):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line.decode(errors="surrogateescape").rstrip("\r") for line in lines)
        pause()
    if rest:
        yield rest.decode(errors="surrogateescape")


def _stdin() -> int:
    return sys.stdin.fileno()


def _print_json(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        typer.echo(json.dumps(row))
