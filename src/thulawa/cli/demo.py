"""The demonstration: the job of the Thulawa paper, measured here and now.

Visits arrive at a steady rate in one partition, and each needs a lookup that takes a while.
Latency is counted from when a visit was due to arrive, so time spent in queues counts.
"""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Literal, TypeAlias

from rich.console import Console
from rich.live import Live
from rich.table import Table

from thulawa.cli.chart import Bar, bar_chart
from thulawa.cli.service import LookupClient, lookup_client, lookup_service
from thulawa.engine import Engine, Options, Outcome, Record, new_event_loop

__all__ = ["Job", "Row", "draw", "run", "show"]

System: TypeAlias = Literal["one_at_a_time", "thulawa"]
_SYSTEMS: tuple[System, ...] = ("one_at_a_time", "thulawa")
_NAMES = {"one_at_a_time": "one at a time", "thulawa": "Thulawa"}

# Table 2 of the paper: events/s of Kafka Streams and of Kafka-Thulawa, by latency in ms.
PAPER = {5: (210, 210), 20: (39, 211), 250: (4, 143)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is demonstrated."""

    latencies: tuple[int, ...]
    rate: float
    seconds: float
    keys: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one run measured."""

    system: System
    latency_ms: int
    events_per_second: float
    p50_ms: float
    p99_ms: float
    order_violations: int

    def as_json(self) -> dict[str, Any]:
        """Give the row as JSON prints it."""
        return {name: getattr(self, name) for name in self.__slots__}


class Visits:
    """A source of visits that arrive at a steady rate until the time is over."""

    def __init__(self, job: Job) -> None:
        self._loop = asyncio.get_running_loop()
        self._rate = job.rate
        self._total = round(job.rate * job.seconds)
        self._keys = job.keys
        self._random = Random(1)
        self._next = 0
        self.started = self._loop.time()

    def due(self, offset: int) -> float:
        """Give the time at which a visit arrives."""
        return self.started + offset / self._rate

    async def take(self, records: int, size: int) -> list[Record]:
        """Give the visits that have arrived, or wait for the next one."""
        del size  # visits are small
        if self._next >= self._total:
            return []
        await asyncio.sleep(max(0.0, self.due(self._next) - self._loop.time()))
        arrived = int((self._loop.time() - self.started) * self._rate) + 1
        upto = min(arrived, self._next + records, self._total)
        chunk = [self._visit(offset) for offset in range(self._next, max(upto, self._next + 1))]
        self._next += len(chunk)
        return chunk

    def _visit(self, offset: int) -> Record:
        number = self._random.randrange(self._keys)
        ip = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
        return Record(offset, ip, ip, timestamp=self.due(offset))


@dataclass(slots=True)
class Tally:
    """Takes outcomes and measures them; checks the order of each key."""

    visits: Visits
    latencies: list[float] = field(default_factory=list)
    violations: int = 0
    first: float = 0.0
    last: float = 0.0
    _last: dict[object, int] = field(default_factory=dict)

    async def put(self, outcomes: list[Outcome]) -> None:
        """Count outcomes as they come out."""
        self.last = now = asyncio.get_running_loop().time()
        self.first = self.first or now
        for outcome in outcomes:
            record = outcome.record
            self.violations += self._last.get(record.key, -1) >= record.offset
            self._last[record.key] = record.offset
            self.latencies.append(now - self.visits.due(record.offset))

    def rate(self) -> float:
        """Give the events a second between the first that came out and the last."""
        return (len(self.latencies) - 1) / max(self.last - self.first, 1e-9)

    def row(self, system: System, latency: int) -> Row:
        """Sum up."""
        ordered = sorted(self.latencies) or [0.0]
        return Row(
            system=system,
            latency_ms=latency,
            events_per_second=round(self.rate(), 1),
            p50_ms=round(ordered[len(ordered) // 2] * 1000, 1),
            p99_ms=round(ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] * 1000, 1),
            order_violations=self.violations,
        )


def run(job: Job, console: Console) -> list[Row]:
    """Measure every system at every latency, showing progress."""
    rows: list[Row] = []
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        for latency in job.latencies:
            with lookup_service(latency / 1000) as port:
                rows += [_measure(system, latency, port, job, live) for system in _SYSTEMS]
    return rows


def _measure(system: System, latency: int, port: int, job: Job, live: Live) -> Row:
    loop = new_event_loop()
    try:
        return loop.run_until_complete(_run_one(system, latency, port, job, live))
    finally:
        loop.close()


async def _run_one(system: System, latency: int, port: int, job: Job, live: Live) -> Row:
    async def locate(record: Record, client: LookupClient) -> str:
        return await client.country(record.value)

    options = Options(
        name="locate", order="partition" if system == "one_at_a_time" else "key", in_flight=1_000
    )
    async with Engine(locate, options, resource=lambda: lookup_client(port)) as engine:
        visits = Visits(job)
        tally = Tally(visits)
        work = asyncio.ensure_future(engine.run(visits, tally))
        deadline = visits.started + job.seconds + 1
        while not work.done() and asyncio.get_running_loop().time() < deadline:
            await asyncio.wait([work], timeout=0.25)
            live.update(_progress(system, latency, engine, tally))
        row = tally.row(system, latency)
        work.cancel()
        await asyncio.wait([work])
        if not work.cancelled():
            work.result()
    return row


def _progress(system: System, latency: int, engine: Engine, tally: Tally) -> Table:
    picture = engine.statistics()
    table = Table(title=f"{_NAMES[system]}, lookups of {latency} ms", title_justify="left")
    cells = {
        "events/s": f"{tally.rate():.0f}",
        "in flight": f"{picture.in_flight}",
        "waiting": f"{picture.waiting}",
        "longest queue": f"{picture.longest_queue}",
        "p99 ms": f"{picture.residence.p99 * 1000:.0f}",
        "bound by": picture.binds,
    }
    for name in cells:
        table.add_column(name, justify="right")
    table.add_row(*cells.values())
    return table


def show(rows: list[Row], job: Job, console: Console) -> None:
    """Print the paper's table beside what was measured."""
    table = Table(
        title=f"One partition, {job.rate:g} visits/s arriving, {job.keys} visitors: events/s",
        title_justify="left",
    )
    headings = ("lookup ms", "paper: Kafka Streams", "paper: Thulawa", "one at a time", "Thulawa")
    for heading in (*headings, "p50 ms", "p99 ms", "out of order"):
        table.add_column(heading, justify="right")
    for latency in job.latencies:
        cells = {row.system: row for row in rows if row.latency_ms == latency}
        ours = cells["thulawa"]
        paper = PAPER.get(latency)
        table.add_row(
            str(latency),
            *(("–", "–") if paper is None else map(str, paper)),
            f"{cells['one_at_a_time'].events_per_second:g}",
            f"[bold]{ours.events_per_second:g}[/bold]",
            f"{ours.p50_ms:g}",
            f"{ours.p99_ms:g}",
            str(ours.order_violations),
        )
    console.print(table)


def draw(rows: list[Row], job: Job, path: Path) -> None:
    """Write the picture."""
    groups: dict[str, list[Bar]] = {}
    for latency in job.latencies:
        bars = []
        if latency in PAPER:
            bars.append(Bar("Kafka Streams (paper)", PAPER[latency][0], "#b8c1cc"))
            bars.append(Bar("Kafka-Thulawa (paper)", PAPER[latency][1], "#8fa3b8"))
        colours = {"one_at_a_time": "#e0a458", "thulawa": "#2a7f62"}
        for row in rows:
            if row.latency_ms == latency:
                name = f"{_NAMES[row.system]} (here)"
                bars.append(Bar(name, row.events_per_second, colours[row.system]))
        groups[f"{latency} ms"] = bars
    title = f"Events a second from one partition, {job.rate:g}/s arriving"
    path.write_text(bar_chart(title, "latency of a lookup", groups), encoding="utf-8")
