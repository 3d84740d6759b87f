"""The demonstration: ``python -m examples.demo``, which is what ``make demo`` runs."""

import platform
import tempfile
from datetime import UTC, datetime
from os import cpu_count
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import thulawa
from examples.demo import race
from examples.demo.display import Display, results
from examples.demo.picture import check_writable, draw
from examples.demo.quiet import noise_to, tail
from thulawa.cli.console import EXIT_CODES, explained
from thulawa.cli.doctor import missing_for_spark
from thulawa.errors import ConfigurationError

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")

Json = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]


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
    job = race.Job(
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


def _demonstrate(job: race.Job, *, json_lines: bool) -> list[race.Row]:
    lacking = [f"{one.what}: {one.found}; {one.advice}" for one in missing_for_spark()]
    if lacking:
        raise race.DemoFailed("\n".join(lacking))
    with tempfile.TemporaryDirectory(prefix="thulawa-demo-", ignore_cleanup_errors=True) as name:
        noise = Path(name, "noise.log")
        width = Console(stderr=True).width  # asked for before the terminal is out of sight
        with noise_to(noise) as (out, err):
            console = Console(file=err, width=width)
            display = Display(job, console, out if json_lines else None)
            try:
                with display.shown():
                    return race.run(job, Path(name), display)
            except Exception as error:
                said = f"\nSpark said:\n{tail(noise)}" if tail(noise) else ""
                raise race.DemoFailed(f"{error}{said}") from error


def _here() -> str:
    today = datetime.now(UTC).date().isoformat()
    python = platform.python_version()
    return f"{cpu_count()} cores, Python {python}, thulawa {thulawa.__version__}, {today}"


if __name__ == "__main__":
    app()
