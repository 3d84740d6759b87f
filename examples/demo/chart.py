"""A bar chart as SVG, without a library."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import floor, log10
from xml.sax.saxutils import escape

__all__ = ["Bar", "Chart"]

_WIDTH, _HEIGHT = 1020, 500
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 24, 118, 112
_FLOOR = _HEIGHT - _BOTTOM
_FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
_INK, _FAINT, _GRID = "#1f2933", "#5b6770", "#e4e8ec"
_STEPS = 5
_ONE_DIGIT = 10


@dataclass(frozen=True, slots=True)
class Bar:
    """One value with its name and colour."""

    name: str
    value: float
    colour: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Groups of bars side by side, each with its value on top; one line across for the goal.

    ``remarks`` are lines below the names of groups.
    """

    title: str
    subtitle: str
    axis: str
    groups: Mapping[str, Sequence[Bar]]
    goal: float
    goal_name: str
    remarks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    note: str = ""

    def svg(self) -> str:
        """Draw it, on a ground of its own: it looks the same on a dark page."""
        parts = [
            _text(_LEFT, 36, self.title, size=20, weight=600),
            _text(_LEFT, 58, self.subtitle, colour=_FAINT),
            *self._legend(),
            *self._grid(),
            *self._goal(),
            *self._bars(),
            _text(_LEFT + self._inner / 2, _FLOOR + 78, self.axis, anchor="middle", colour=_FAINT),
            _text(_WIDTH - _RIGHT, _HEIGHT - 10, self.note, anchor="end", size=11, colour=_FAINT),
        ]
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
            f'width="{_WIDTH}" height="{_HEIGHT}" role="img" font-family="{_FONT}">\n'
            f"<title>{escape(self.title)}</title>\n"
            f'<rect x="0.5" y="0.5" width="{_WIDTH - 1}" height="{_HEIGHT - 1}" rx="10" '
            f'fill="#ffffff" stroke="{_GRID}"/>\n' + "\n".join(parts) + "\n</svg>\n"
        )

    @property
    def _inner(self) -> float:
        return _WIDTH - _LEFT - _RIGHT

    @property
    def _step(self) -> float:
        """The distance of two lines of the grid: 1, 2 or 5 times a power of ten."""
        bars = [bar.value for group in self.groups.values() for bar in group]
        rough = max([*bars, self.goal, 1e-9]) / _STEPS
        power = 10.0 ** floor(log10(rough))
        return next(power * times for times in (1, 2, 5, 10) if rough <= power * times)

    def _y(self, value: float) -> float:
        return _FLOOR - value * (_FLOOR - _TOP) / (self._step * _STEPS)

    def _legend(self) -> list[str]:
        colours = {bar.name: bar.colour for bars in self.groups.values() for bar in bars}
        parts = []
        x = float(_LEFT)
        for name, colour in colours.items():
            parts.append(
                f'<rect x="{x:.0f}" y="76" width="12" height="12" rx="2" fill="{colour}"/>'
            )
            parts.append(_text(x + 18, 86.5, name))
            x += 38 + 6.9 * len(name)
        return parts

    def _grid(self) -> list[str]:
        parts = []
        for number in range(_STEPS + 1):
            value = number * self._step
            y = self._y(value)
            colour = _FAINT if number == 0 else _GRID
            parts.append(_line(y, colour))
            parts.append(_text(_LEFT - 8, y + 4, f"{value:g}", anchor="end", colour=_FAINT))
        return parts

    def _goal(self) -> list[str]:
        y = self._y(self.goal)
        name = _text(_WIDTH - _RIGHT, y - 22, self.goal_name, anchor="end", size=12, colour=_FAINT)
        return [_line(y, _FAINT, dashes="5 4"), name] if self.goal else []

    def _bars(self) -> list[str]:
        parts = []
        span = self._inner / max(1, len(self.groups))
        for index, (label, bars) in enumerate(self.groups.items()):
            left = _LEFT + (index + 0.08) * span
            width = span * 0.84 / max(1, len(bars))
            for place, bar in enumerate(bars):
                parts += _bar(bar, left + place * width, width, self._y(bar.value))
            middle = _LEFT + (index + 0.5) * span
            parts.append(_text(middle, _FLOOR + 21, label, anchor="middle", weight=600))
            for line, remark in enumerate(self.remarks.get(label, ())):
                parts.append(
                    _text(middle, _FLOOR + 39 + 16 * line, remark, anchor="middle", size=12)
                )
        return parts


def _bar(bar: Bar, x: float, width: float, y: float) -> list[str]:
    figure = f"{bar.value:.2g}" if bar.value < _ONE_DIGIT else f"{bar.value:.0f}"
    block = (
        f'<rect x="{x + width * 0.05:.1f}" y="{y:.1f}" width="{width * 0.9:.1f}" '
        f'height="{_FLOOR - y:.1f}" rx="2" fill="{bar.colour}">'
        f"<title>{escape(bar.name)}: {bar.value:g}</title></rect>"
    )
    # with a border of the ground's colour: a figure may lie on the line of the goal
    return [
        block,
        _text(x + width / 2, y - 6, figure, anchor="middle", size=12, weight=600, halo=True),
    ]


def _line(y: float, colour: str, dashes: str = "none") -> str:
    return (
        f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" '
        f'stroke="{colour}" stroke-dasharray="{dashes}"/>'
    )


def _text(
    x: float,
    y: float,
    words: str,
    *,
    size: int = 13,
    anchor: str = "start",
    weight: int = 400,
    colour: str = _INK,
    halo: bool = False,
) -> str:
    border = ' stroke="#ffffff" stroke-width="3" paint-order="stroke"' if halo else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" '
        f'text-anchor="{anchor}" fill="{colour}"{border}>{escape(words)}</text>'
    )
