"""How every benchmark reports: aligned text tables, or one JSON object per row.

Targets stand beside the rows they belong to and say "met" or "MISSED"; they are never asserted,
because what a machine reaches is a measurement and not a fact about the code.
"""

import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO, TypeAlias

__all__ = ["TARGET", "Column", "Progress", "Report", "Row", "figure", "judge", "machine", "percent"]

Row: TypeAlias = dict[str, Any]


def figure(value: float) -> str:
    """Write a number with about four digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.4g}"


def percent(value: float) -> str:
    """Write a percentage."""
    return f"{value:.1f} %"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a text table: a row's field, its heading, how its values are written."""

    field: str
    heading: str
    write: Callable[[Any], str] = str

    def cell(self, row: Row) -> str:
        """Write this column of a row; a dash where it has none."""
        value = row.get(self.field)
        return "–" if value is None else self.write(value)


TARGET = Column("target", "target")


def judge(row: Row, field: str, at_least: float, target: str) -> Row:
    """Set a target beside a row: ``field`` is to be at least this much."""
    return row | {"target": target, "met": row[field] >= at_least}


class Report:
    """Prints sections of rows."""

    def __init__(
        self,
        benchmark: str,
        progress: "Progress",
        *,
        as_json: bool = False,
        out: TextIO | None = None,
    ) -> None:
        self._benchmark = benchmark
        self._progress = progress
        self._as_json = as_json
        self._out = out or sys.stdout

    def section(
        self,
        name: str,
        title: str,
        columns: Sequence[Column],
        rows: Iterable[Row],
        notes: Sequence[str] = (),
    ) -> None:
        """Print the rows as they come (JSON), or all of them as a table with its notes."""
        if self._as_json:
            for row in rows:
                self._print(json.dumps({"benchmark": self._benchmark, "section": name} | row))
            return
        lines = aligned(columns, list(rows))
        self._print("", title, *lines, *(f"  {note}" for note in notes))

    def _print(self, *lines: str) -> None:
        self._progress.clear()
        print(*lines, sep="\n", file=self._out, flush=True)


def aligned(columns: Sequence[Column], rows: Sequence[Row]) -> list[str]:
    """Lay rows out as lines of text, figures flush right and targets last."""
    cells = [[column.heading for column in columns]]
    for row in rows:
        verdict = {} if "target" not in row else {"target": _verdict(row)}
        cells.append([column.cell(row | verdict) for column in columns])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for line in cells:
        texts = [
            text.ljust(width) if column is TARGET else text.rjust(width)
            for column, text, width in zip(columns, line, widths, strict=True)
        ]
        lines.append("  " + "  ".join(texts).rstrip())
    lines.insert(1, "  " + "  ".join("-" * width for width in widths))
    return lines


def _verdict(row: Row) -> str:
    return f"{row['target']}: {'met' if row['met'] else 'MISSED'}"


class Progress:
    """Says on stderr what is being measured: one line, rewritten, where that is a terminal."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._terminal = self._out.isatty()
        self._section = ""

    def __call__(self, section: str, detail: str = "") -> None:
        """Show what is next; elsewhere than on a terminal once a section."""
        if self._terminal:
            print(f"\r\x1b[K{section}: {detail}", end="", file=self._out, flush=True)
        elif section != self._section:
            print(f"{section} …", file=self._out, flush=True)
        self._section = section

    def clear(self) -> None:
        """Leave the line empty."""
        if self._terminal:
            print("\r\x1b[K", end="", file=self._out, flush=True)


def machine(**more: str) -> Row:
    """Describe where and when the figures were taken."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        "python": platform.python_version(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    } | more


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()
