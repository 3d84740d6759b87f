"""What the demonstration shows in the terminal, while it runs and at its end."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from examples.demo.enrichment import System
from examples.demo.race import Job, Look, Moment, Row, Watcher

__all__ = ["NAMES", "PAPER", "Display", "comparable", "results"]

NAMES: dict[System, str] = {
    "one_at_a_time": "one at a time",
    "spark_udf": "Spark UDF",
    "thulawa": "Thulawa",
    "continuous": "continuous",
}
# The paper's events/s by latency in ms: Kafka Streams, Kafka-Thulawa.
PAPER = {5: (210, 210), 20: (39, 211), 250: (4, 143)}
_PAPER_S_RATE = 215
_PAPER_S_KEYS = 1_000
_BAR = 14
_THREE_DIGITS = 100

_STYLES: dict[System, str] = {
    "one_at_a_time": "yellow",
    "spark_udf": "magenta",
    "thulawa": "green",
    "continuous": "cyan",
}


def comparable(job: Job) -> bool:
    """Tell whether the paper's figures may stand beside those of this job."""
    same = job.rate == _PAPER_S_RATE and job.keys == _PAPER_S_KEYS
    return same and any(latency in PAPER for latency in job.latencies)


class Display(Watcher):
    """Shows each moment in place, and each result as a line that stays."""

    def __init__(self, job: Job, console: Console, rows: TextIO | None) -> None:
        self._job = job
        self._console = console
        self._rows = rows
        self._live = Live(console=console, refresh_per_second=8, transient=True)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show while the context lasts."""
        job = self._job
        self._console.print(
            f"One partition, {job.rate:g} visits a second from {job.keys:,} visitors. Each visit "
            "needs a lookup over HTTP.\nThree Spark queries and a continuous "
            "application read the same visits at the same time.",
            highlight=False,
        )
        with self._live:
            yield

    def doing(self, what: str) -> None:
        """Show what is being prepared."""
        self._live.update(Spinner("dots", text=f"{what} …"))

    def moment(self, moment: Moment) -> None:
        """Show how the systems fare."""
        self._live.update(_race(moment, self._job), refresh=True)

    def result(self, rows: list[Row]) -> None:
        """Leave a line for each latency; print the rows where they were asked for."""
        rates = "  ".join(
            f"{NAMES[row.system]} [{_STYLES[row.system]}]{_number(row.events_per_second)}/s[/]"
            for row in rows
        )
        self._console.print(f"{rows[0].latency_ms:>5} ms  {rates}", highlight=False)
        if self._rows is not None:
            for row in rows:
                self._rows.write(json.dumps(row.as_json()) + "\n")


def _race(moment: Moment, job: Job) -> RenderableType:
    head = Text.assemble(
        (f"Lookups of {moment.latency_ms} ms", "bold"),
        f"   {moment.passed:.0f} s of {moment.total:.0f} s",
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=True)
    table.add_column("system", no_wrap=True, min_width=max(map(len, NAMES.values())))
    table.add_column(f"of {job.rate:g}/s", min_width=_BAR, no_wrap=True)
    for name, width in (("events/s", 8), ("in flight", 9), ("waiting", 7)):
        table.add_column(name, justify="right", min_width=width, no_wrap=True)
    # what is too long for the terminal is left off here, and here only
    table.add_column("slowest keys", no_wrap=True, overflow="ellipsis", ratio=1)
    for look in moment.looks:
        table.add_row(*_cells(look, job))
    return Group("", head, table)


def _cells(look: Look, job: Job) -> tuple[RenderableType, ...]:
    style = _STYLES[look.system]
    share = min(look.events_per_second, job.rate)
    slowest = ", ".join(f"{key} {seconds:.1f} s" for key, seconds in look.slowest)
    return (
        Text(NAMES[look.system], style),
        ProgressBar(
            total=job.rate, completed=share, width=_BAR, complete_style=style, finished_style=style
        ),
        f"{look.events_per_second:.0f}",
        f"{look.in_flight:,}",
        f"{look.waiting:,}",
        slowest,
    )


def results(rows: list[Row], job: Job) -> RenderableType:
    """Give the table: the paper's figures, where they can be compared, beside what was measured."""
    table = Table(
        title=f"Events a second from one partition, {job.rate:g} arriving, {job.keys:,} keys",
        title_style="bold",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1),
        collapse_padding=True,
    )
    with_paper = comparable(job)
    headings = ["lookup"]
    headings += ["paper:\nKafka\nStreams", "paper:\n\nThulawa"] if with_paper else []
    headings += [
        "here:\none at\na time",
        "here:\nSpark\nUDF",
        "here:\n\nThulawa",
        "here:\n\ncontin.",
    ]
    headings += ["Thulawa\np50/p99\ns", "contin.\np50/p99\nms"]
    for heading in headings:
        table.add_column(heading, justify="right", vertical="bottom", no_wrap=True)
    for latency in job.latencies:
        of_this = {row.system: row for row in rows if row.latency_ms == latency}
        ours, continuous = of_this["thulawa"], of_this["continuous"]
        paper = [str(figure) for figure in PAPER.get(latency, ("–", "–"))] if with_paper else []
        table.add_row(
            f"{latency} ms",
            *paper,
            _number(of_this["one_at_a_time"].events_per_second),
            _number(of_this["spark_udf"].events_per_second),
            f"[bold green]{_number(ours.events_per_second)}[/]",
            f"[bold cyan]{_number(continuous.events_per_second)}[/]",
            f"{ours.p50_ms / 1000:.1f}/{ours.p99_ms / 1000:.1f}",
            f"{continuous.p50_ms:.0f}/{continuous.p99_ms:.0f}",
        )
    violations = sum(row.order_violations for row in rows)
    note = (
        f"Results out of the order of their key, in all four output topics: {violations}.\n"
        "Rates: results in the output topics. Latencies: from when a visit was due to\n"
        "arrive until a reader saw its result. Thulawa: micro-batches, exactly once.\n"
        "Continuous: at least once."
    )
    return Group(table, Text(note, "dim"))


def _number(rate: float) -> str:
    return f"{rate:.1f}" if rate < _THREE_DIGITS else f"{rate:.0f}"
