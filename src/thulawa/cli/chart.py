"""A bar chart as SVG, without a library."""

from dataclasses import dataclass
from xml.sax.saxutils import escape

__all__ = ["Bar", "bar_chart"]

_WIDTH, _HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 20, 90, 60
_FONT = 'font-family="system-ui, sans-serif"'


@dataclass(frozen=True, slots=True)
class Bar:
    """One value with its name and colour."""

    name: str
    value: float
    colour: str


def bar_chart(title: str, axis: str, groups: dict[str, list[Bar]]) -> str:
    """Draw groups of bars side by side, each with its value on top."""
    highest = max((bar.value for bars in groups.values() for bar in bars), default=1) or 1
    scale = (_HEIGHT - _TOP - _BOTTOM) / (highest * 1.05)
    floor = _HEIGHT - _BOTTOM
    parts = [_text(_LEFT, 28, title, size=17, weight="600"), *_legend(groups)]
    span = (_WIDTH - _LEFT - _RIGHT) / max(1, len(groups))
    for index, (label, bars) in enumerate(groups.items()):
        left = _LEFT + index * span
        width = span * 0.8 / max(1, len(bars))
        for place, bar in enumerate(bars):
            x = left + span * 0.1 + place * width
            height = bar.value * scale
            parts.append(
                f'<rect x="{x:.1f}" y="{floor - height:.1f}" width="{width * 0.9:.1f}" '
                f'height="{height:.1f}" fill="{bar.colour}"><title>{escape(bar.name)}: '
                f"{bar.value:g}</title></rect>"
            )
            middle = x + width * 0.45
            parts.append(_text(middle, floor - height - 6, f"{bar.value:.0f}", anchor="middle"))
        parts.append(_text(left + span / 2, floor + 20, label, anchor="middle"))
    parts.append(
        f'<line x1="{_LEFT}" y1="{floor}" x2="{_WIDTH - _RIGHT}" y2="{floor}" stroke="#555"/>'
    )
    parts.append(_text(_WIDTH / 2, floor + 42, axis, anchor="middle", size=12))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}">\n<rect width="100%" height="100%" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _legend(groups: dict[str, list[Bar]]) -> list[str]:
    colours = {bar.name: bar.colour for bars in groups.values() for bar in bars}
    parts = []
    x = float(_LEFT)
    for name, colour in colours.items():
        parts.append(f'<rect x="{x:.0f}" y="46" width="12" height="12" fill="{colour}"/>')
        parts.append(_text(x + 17, 57, name, size=12))
        x += 30 + 6.6 * len(name)
    return parts


def _text(
    x: float, y: float, words: str, *, size: int = 13, anchor: str = "start", weight: str = "400"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" {_FONT} font-size="{size}" font-weight="{weight}" '
        f'text-anchor="{anchor}" fill="#222">{escape(words)}</text>'
    )
