"""Topic health, demonstrated: ``python -m examples.topic_health.demo [--influx URL]``.

Payments come to a topic of the embedded log, a known share of them invalid and late; an instance
counts them by the second while they come. At the end a table and a picture show the counts, beside
what was sent.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import thulawa
from examples.demo.chart import Bar, Chart
from examples.demo.quiet import noise_to
from examples.topic_health.generator import Generator
from examples.topic_health.messages import PAYMENT
from thulawa.brokers.embedded import Log
from thulawa.health import Count, Influx, json_schema, merged

_PARTITIONS = 4
_WINDOW = 1_000
_TICK = 0.1
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run it; ends with an error when a count is not what was sent."""
    options = _options(arguments)
    with tempfile.TemporaryDirectory(prefix="topic-health-") as name:
        folder = Path(name)
        width = Console().width
        with noise_to(folder / "noise.log") as (out, _):
            console = Console(file=out, width=width, highlight=False)
            generator, counts = _run(options, folder, console)
        rows = _rows(generator, counts)
        console = Console(highlight=False)
        console.print(_table(rows))
        wrong = sum(sent != counted for _, sent, counted in rows)
        console.print(
            f"{sum(generator.sent.values()):,} payments, {generator.late_ones:,} of them late, in "
            f"{len(counts)} totals of {_PARTITIONS} partitions;\n"
            f"{wrong} of {len(rows)} windows differ from what was sent"
        )
        Path(options.picture).write_text(_picture(rows), encoding="utf-8")
        console.print(f"Picture: {options.picture}", soft_wrap=True)
    if wrong:
        raise SystemExit("the counts are not exact")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make demo-topic-health ARGS=…", description=__doc__)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--rate", type=int, default=5_000, help="payments a second")
    parser.add_argument("--invalid", type=float, default=0.1, help="share of invalid ones")
    parser.add_argument("--late", type=float, default=0.05, help="share of late ones")
    parser.add_argument("--influx", metavar="URL", help="write the counts there too")
    parser.add_argument("--picture", default="topic-health.svg")
    return parser.parse_args(arguments)


def _run(
    options: argparse.Namespace, folder: Path, console: Console
) -> tuple[Generator, list[Count]]:
    sinks: list[Any] = []
    if options.influx:
        sinks.append(Influx(options.influx, database="health", retry_timeout="10 s"))
        sinks[0].create_database()
    console.print("Starting Spark …")
    spark = thulawa.session("topic-health", master="local[2]", settings=_SETTINGS)
    try:
        with Log(f"file:{folder}/topics") as log:
            log.create_topic("payments", partitions=_PARTITIONS)
            generator = Generator(
                log, "payments", _PARTITIONS, invalid=options.invalid, late=options.late
            )
            health = thulawa.health.WindowCounts(
                "payments",
                status=json_schema(PAYMENT),
                output="metrics",
                application_id="topic-health",
                log=log.address,
                sinks=[*sinks, lambda counts: _tell(console, counts)],
                spark=spark,
            )
            with health:
                # Spark's workers start with the first payment: the others are counted as they come
                generator.send(1, int(time.time() * 1000))
                health.process_all_available("2 minutes")
                console.print(
                    f"{options.rate:,} payments a second for {options.seconds:g} seconds:"
                )
                _send(generator, options.seconds, options.rate)
                health.process_all_available("2 minutes")
                return generator, health.counts()
    finally:
        spark.stop()


def _send(generator: Generator, seconds: float, rate: int) -> None:
    began = time.time()
    sent = 0
    while (passed := time.time() - began) < seconds:
        due = int(rate * passed)
        generator.send(due - sent, int(time.time() * 1000))
        sent = due
        time.sleep(_TICK)


def _tell(console: Console, counts: Sequence[Count]) -> None:
    newest = max(count.cell.window for count in counts)
    late = sum(newest - count.cell.window > _WINDOW for count in counts)
    console.print(
        f"  {_clock(newest)}  {len(counts):>4} totals written, {late:>3} of older windows"
    )


def _rows(
    generator: Generator, counts: Sequence[Count]
) -> list[tuple[int, tuple[int, int], tuple[int, int]]]:
    """Give each window with what was sent and what was counted: valid, invalid."""
    found = {(one.cell.window, one.cell.status): one.value or 0 for one in merged(counts)}
    windows = sorted({window for window, _ in {*generator.sent, *found}})
    return [
        (
            window,
            (generator.sent[window, "valid"], generator.sent[window, "invalid"]),
            (found.get((window, "valid"), 0), found.get((window, "invalid"), 0)),
        )
        for window in windows
    ]


def _table(rows: Sequence[tuple[int, tuple[int, int], tuple[int, int]]]) -> Table:
    table = Table(title="Payments by the second, all partitions")
    for name in ("window", "valid", "invalid", "sent valid", "sent invalid", ""):
        table.add_column(name, justify="right")
    for window, sent, counted in rows:
        figures = [f"{value:,}" for value in (*counted, *sent)]
        table.add_row(_clock(window), *figures, "exact" if sent == counted else "[red]wrong")
    return table


def _picture(rows: Sequence[tuple[int, tuple[int, int], tuple[int, int]]]) -> str:
    shown = rows[-10:]
    return Chart(
        title="Topic health: payments by the second",
        subtitle="valid and invalid messages, counted per partition, summed",
        axis="window",
        groups={
            _clock(window)[3:]: [Bar("valid", good, "#1b7f5c"), Bar("invalid", bad, "#c0392b")]
            for window, _, (good, bad) in shown
        },
        goal=0,
        goal_name="",
    ).svg()


def _clock(window: int) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(window / 1000))


if __name__ == "__main__":
    main()
