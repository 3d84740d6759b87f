"""``thulawa topics``: look at and write to the topics of a broker."""

import os
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from thulawa.brokers.port import Broker
from thulawa.cli.console import Json, LogAddress, broker_at, explained, print_json, print_table
from thulawa.cli.lines import as_json, as_line, parse
from thulawa.core.durations import milliseconds
from thulawa.core.types import ConsumerRecord, ProducerRecord, TopicPartition
from thulawa.errors import ConfigurationError

app = typer.Typer(
    help="Look at and write to topics of an embedded log or of Kafka.", no_args_is_help=True
)

Topic = Annotated[str, typer.Argument(help="The topic.", show_default=False)]

_CHUNK = 1 << 16
_POLL_INTERVAL = 0.2
_SIZES = ("partitions", "records", "bytes")


@app.command("list")
@explained
def list_topics(log: LogAddress = "topics", json_lines: Json = False) -> None:
    """List the topics with their partitions, records and sizes.

    Kafka does not report bytes, and records there include offsets that compaction left unused.
    """
    with broker_at(log) as broker:
        rows = [_row(broker, topic) for topic in broker.topics()]
    if json_lines:
        print_json(rows)
    elif not rows:
        typer.echo(
            f"no topics in {log}; create one: thulawa topics create visits --log {log}", err=True
        )
    else:
        print_table(
            ("topic", *_SIZES, "cleanup"),
            [
                (row["topic"], *(_figure(row[name]) for name in _SIZES), row["cleanup"])
                for row in rows
            ],
            numbers=_SIZES,
        )


def _figure(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _row(broker: Broker, topic: str) -> dict[str, Any]:
    metadata, size = broker.describe(topic), broker.size(topic)
    starts, ends = broker.start_offsets(topic)[topic], broker.end_offsets(topic)[topic]
    return {
        "topic": topic,
        "partitions": metadata.partitions,
        "records": size.records,
        "bytes": size.bytes,
        "cleanup": "compact" if metadata.compact else "delete",
        "offsets": {str(number): [starts[number], end] for number, end in sorted(ends.items())},
    }


@app.command()
@explained
def create(
    topic: Topic,
    partitions: Annotated[int, typer.Option(help="How many partitions.", min=1)] = 1,
    compact: Annotated[
        bool, typer.Option("--compact", help="Keep each key's last record.")
    ] = False,
    keep: Annotated[
        str | None, typer.Option(help="Keep records for so long: '7 days', '12h'.")
    ] = None,
    log: LogAddress = "topics",
) -> None:
    """Create a topic; one with the same partitions and clean-up is left as it is."""
    retention = None if keep is None else milliseconds(keep, name="--keep") / 1000
    with broker_at(log) as broker:
        broker.create_topic(topic, partitions, compact=compact, retention=retention)
    typer.echo(f"{topic}: {partitions} partition(s)", err=True)


@app.command()
@explained
def tail(
    topic: Topic,
    count: Annotated[int, typer.Option("-n", "--records", help="How many.", min=0)] = 10,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Continue until Ctrl-C.")] = False,
    log: LogAddress = "topics",
    json_lines: Json = False,
) -> None:
    """Print a topic's last records, oldest first: partition, offset, key, value.

    With several partitions, the last records of each are put in the order of their timestamps.
    """
    to_text = as_json if json_lines else as_line
    with broker_at(log) as broker:
        ends = broker.end_offsets(topic)[topic]
        for record in _last(broker, topic, ends, count):
            typer.echo(to_text(record))
        try:
            while follow:
                time.sleep(_POLL_INTERVAL)
                starts, ends = ends, broker.end_offsets(topic)[topic]
                for record in _read(broker, topic, starts, ends):
                    typer.echo(to_text(record))
        except KeyboardInterrupt:
            pass  # this ends it


def _read(
    broker: Broker, topic: str, starts: Mapping[int, int], ends: Mapping[int, int]
) -> Iterator[ConsumerRecord]:
    return broker.read(
        {TopicPartition(topic, at): (starts.get(at, 0), end) for at, end in ends.items()}
    )


def _last(broker: Broker, topic: str, ends: Mapping[int, int], count: int) -> list[ConsumerRecord]:
    """Return the last records before these offsets; compaction may have left gaps."""
    first = broker.start_offsets(topic)[topic]
    found: list[ConsumerRecord] = []
    for partition, end in ends.items() if count else ():
        reach, start = count, end
        records: list[ConsumerRecord] = []
        while len(records) < count and start > first[partition]:
            start = max(first[partition], end - reach)
            records = list(_read(broker, topic, {partition: start}, {partition: end}))
            reach *= 4
        found += records[-count:]
    found.sort(key=lambda record: record.timestamp)
    return found[-count:]


@app.command()
@explained
def produce(
    topic: Topic,
    separator: Annotated[str, typer.Option(help="Between key and value.")] = ":",
    json_lines: Annotated[
        bool,
        typer.Option("--json", help="Each line is an object as `tail --json` prints it."),
    ] = False,
    log: LogAddress = "topics",
) -> None:
    """Write the lines of standard input to a topic, one record each.

    A line is key:value, or a value alone where there is no separator. At the end the number of
    records that were written is printed; a line that cannot be read ends the command.
    """
    written = 0
    with broker_at(log) as broker:
        try:
            for lines in _chunks():
                records: list[ProducerRecord] = []
                try:
                    # those before a line that cannot be read stay in the list
                    records.extend(parse(line, None if json_lines else separator) for line in lines)
                except ValueError as error:
                    number = written + len(records) + 1
                    raise ConfigurationError(f"line {number}: {error}") from error
                finally:
                    broker.append(topic, records)
                    written += len(records)
        finally:
            typer.echo(f"{written} record(s) written to {topic}", err=True)


def _chunks() -> Iterator[list[str]]:
    """Yield the lines of standard input as they arrive, in chunks."""
    rest = b""
    while chunk := os.read(_stdin(), _CHUNK):
        *lines, rest = (rest + chunk).split(b"\n")
        yield [line.decode(errors="surrogateescape").rstrip("\r") for line in lines]
    if rest:
        yield [rest.decode(errors="surrogateescape")]


def _stdin() -> int:
    return sys.stdin.fileno()
