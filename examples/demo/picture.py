"""The demonstration's picture."""

from pathlib import Path

from examples.demo.chart import Bar, Chart
from examples.demo.display import NAMES, PAPER, comparable
from examples.demo.enrichment import System
from examples.demo.race import Job, Row

__all__ = ["check_writable", "draw"]

_COLOURS: dict[System, str] = {
    "one_at_a_time": "#e9b44c",
    "spark_udf": "#c77d5e",
    "thulawa": "#1b7f5c",
    "continuous": "#2f80c2",
}


def check_writable(path: Path) -> None:
    """Raise OSError now, rather than when the work is done, if the file cannot be written."""
    existed = path.exists()
    with path.open("a"):
        pass
    if not existed:
        path.unlink()


def draw(rows: list[Row], job: Job, path: Path, note: str) -> None:
    """Write the picture as SVG."""
    chart = Chart(
        title="Events a second from one partition",
        subtitle=f"{job.rate:g} visits a second arriving, {job.keys:,} keys, each in order; "
        "one HTTP lookup a visit",
        axis="how long a lookup takes",
        groups={f"{latency} ms": _bars(rows, job, latency) for latency in job.latencies},
        remarks={f"{latency} ms": _latencies(rows, latency) for latency in job.latencies},
        goal=job.rate,
        goal_name="arriving",
        note=note,
    )
    path.write_text(chart.svg(), encoding="utf-8")


def _bars(rows: list[Row], job: Job, latency: int) -> list[Bar]:
    bars = []
    if comparable(job) and latency in PAPER:
        streams, thulawa = PAPER[latency]
        bars.append(Bar("Kafka Streams (paper)", streams, "#c9d1d9"))
        bars.append(Bar("Thulawa (paper)", thulawa, "#93a4b5"))
    for row in rows:
        if row.latency_ms == latency:
            name = f"{NAMES[row.system]} (here)"
            bars.append(Bar(name, row.events_per_second, _COLOURS[row.system]))
    return bars


def _latencies(rows: list[Row], latency: int) -> list[str]:
    """Return the latencies of both ways to run Thulawa, a line for each."""
    ours = {row.system: row for row in rows if row.latency_ms == latency}
    batches, continuous = ours["thulawa"], ours["continuous"]
    return [
        f"Thulawa: p50 {batches.p50_ms / 1000:.1f} s, p99 {batches.p99_ms / 1000:.1f} s",
        f"continuous: p50 {continuous.p50_ms:.0f} ms, p99 {continuous.p99_ms:.0f} ms",
    ]
