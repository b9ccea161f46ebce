"""Bars with their spread, as SVG text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from xml.sax.saxutils import escape

WIDTH, LABEL, BAR, GAP, TOP = 640, 130, 22, 12, 34
COLOURS = ("#1f77b4", "#7fb2d9", "#8c8c8c")


def bars(title: str, values: Mapping[str, Sequence[float]]) -> str:
    """A bar as long as the median for each name, and a thin line from the smallest to the largest value."""
    most = max(max(each) for each in values.values()) or 1.0
    scale = (WIDTH - LABEL - 90) / most
    height = TOP + len(values) * (BAR + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif">',
        f'<text x="0" y="18" font-size="15">{escape(title)}</text>',
    ]
    for index, (name, each) in enumerate(values.items()):
        y, end = TOP + index * (BAR + GAP), LABEL + median(each) * scale
        low, high = LABEL + min(each) * scale, LABEL + max(each) * scale
        middle = y + BAR / 2
        parts += [
            f'<text x="0" y="{middle + 5}" font-size="13">{escape(name)}</text>',
            f'<rect x="{LABEL}" y="{y}" width="{end - LABEL:.1f}" height="{BAR}" fill="{COLOURS[index % 3]}"/>',
            f'<line x1="{low:.1f}" y1="{middle}" x2="{high:.1f}" y2="{middle}" stroke="black" stroke-width="2"/>',
            f'<text x="{max(end, high) + 6:.1f}" y="{middle + 5}" font-size="13">{median(each):,.4g}</text>',
        ]
    return "\n".join([*parts, "</svg>\n"])
