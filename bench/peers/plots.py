"""Bar charts as SVG: no library, no web font, readable on a dark page too."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

# A median, the least and the most.
Value = tuple[float, float, float]
_COLOURS = ("#0b6e4f", "#6b4fbb", "#c77700", "#4a6fa5")
_WIDTH, _LEFT, _RIGHT, _BAR, _GAP, _TOP = 720, 170, 70, 18, 14, 44
_STYLE = (
    "<style>text{font:12px system-ui,sans-serif;fill:#222}.t{font-size:15px;font-weight:600}"
    ".v{font-variant-numeric:tabular-nums}line{stroke:#222}rect.p{fill:#fff}"
    "@media(prefers-color-scheme:dark){text{fill:#eee}line{stroke:#eee}rect.p{fill:#161616}}"
    "</style>"
)


def bars(title: str, groups: Mapping[str, Mapping[str, Value]]) -> str:
    """Return a chart of horizontal bars, each with a line from its least to its most.

    Args:
        title: above the chart, with the unit.
        groups: by what is compared, then by system, in the order of drawing; values 0 or more.
    """
    most = max(value[2] for group in groups.values() for value in group.values()) or 1.0
    scale = (_WIDTH - _LEFT - _RIGHT) / most
    systems = list(dict.fromkeys(system for group in groups.values() for system in group))
    parts, y = [], _TOP
    for name, group in groups.items():
        middle = y + len(group) * _BAR / 2 + 4
        parts.append(f'<text x="8" y="{middle:.0f}">{escape(name)}</text>')
        for system, (value, least, top) in group.items():
            colour = _COLOURS[systems.index(system) % len(_COLOURS)]
            at = y + _BAR / 2
            parts.append(
                f'<rect x="{_LEFT}" y="{y}" width="{value * scale:.1f}" height="{_BAR - 3}"'
                f' fill="{colour}"><title>{escape(system)}: {value:.4g}</title></rect>'
                f'<line x1="{_LEFT + least * scale:.1f}" x2="{_LEFT + top * scale:.1f}"'
                f' y1="{at - 1.5}" y2="{at - 1.5}"/>'
                f'<text class="v" x="{_LEFT + top * scale + 6:.1f}" y="{at + 3}">{value:.4g}</text>'
            )
            y += _BAR
        y += _GAP
    for number, system in enumerate(systems):
        x = _LEFT + number * 130
        colour = _COLOURS[number % len(_COLOURS)]
        parts.append(
            f'<rect x="{x}" y="{y}" width="11" height="11" fill="{colour}"/>'
            f'<text x="{x + 17}" y="{y + 10}">{escape(system)}</text>'
        )
    height = y + 24
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}"'
        f' viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">{_STYLE}'
        f'<rect class="p" width="100%" height="100%"/>'
        f'<text class="t" x="8" y="24">{escape(title)}</text>{"".join(parts)}</svg>\n'
    )
