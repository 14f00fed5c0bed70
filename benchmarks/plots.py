"""Bar charts as SVG, written by hand: no plotting library to install."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

COLORS = {
    "cohort": "#2b6cb0", "tutorial": "#dd8452", "litserve": "#8172b3", "mlserver": "#55a868",
}  # fmt: skip
BAR, GAP, HEIGHT, LEFT, TOP, BOTTOM = 34, 26, 220, 70, 46, 46


def bars(
    title: str, groups: Mapping[str, Mapping[str, float]], unit: str, line: float | None = None
) -> str:
    """One group of bars per key, one bar per server, and a dashed line where one is given."""
    highest = max([*(value for group in groups.values() for value in group.values()), line or 0])
    highest = highest * 1.08 or 1
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    width = LEFT + sum(BAR * len(group) + GAP for group in groups.values()) + 130
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT + TOP + BOTTOM}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14">{escape(title)}</text>',
        f'<text x="{LEFT}" y="36" fill="#666">{escape(unit)}</text>',
    ]
    for step in range(5):
        value = highest * step / 4
        y = TOP + HEIGHT - HEIGHT * step / 4
        parts.append(
            f'<path d="M{LEFT} {y:.1f}H{width - 120}" stroke="#ddd"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_short(value)}</text>'
        )
    x = float(LEFT + GAP / 2)
    for label, group in groups.items():
        start = x
        for name, value in group.items():
            tall = HEIGHT * value / highest
            parts.append(
                f'<rect x="{x:.1f}" y="{TOP + HEIGHT - tall:.1f}" width="{BAR - 4}" '
                f'height="{tall:.1f}" fill="{COLORS.get(name, "#777")}"/>'
                f'<text x="{x + BAR / 2 - 2:.1f}" y="{TOP + HEIGHT - tall - 3:.1f}" '
                f'text-anchor="middle" font-size="9">{_short(value)}</text>'
            )
            x += BAR
        parts.append(
            f'<text x="{(start + x) / 2:.1f}" y="{TOP + HEIGHT + 18}" '
            f'text-anchor="middle">{escape(label)}</text>'
        )
        x += GAP
    if line:
        y = TOP + HEIGHT - HEIGHT * line / highest
        parts.append(
            f'<path d="M{LEFT} {y:.1f}H{width - 120}" stroke="#c00" stroke-dasharray="5 4"/>'
            f'<text x="{width - 116}" y="{y + 4:.1f}" fill="#c00">bare loop {_short(line)}</text>'
        )
    for number, name in enumerate(names):
        y = TOP + 16 * number + 30
        parts.append(
            f'<rect x="{width - 116}" y="{y}" width="10" height="10" '
            f'fill="{COLORS.get(name, "#777")}"/>'
            f'<text x="{width - 102}" y="{y + 9}">{escape(name)}</text>'
        )
    return "\n".join([*parts, "</svg>\n"])


def _short(value: float) -> str:
    if value >= 10_000:
        return f"{value / 1000:.0f}k"
    if value >= 1000:
        return f"{value / 1000:.1f}k"
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
