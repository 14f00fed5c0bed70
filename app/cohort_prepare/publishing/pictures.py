"""Pictures of MODEL.md as SVG; the same figures give the same bytes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cohort.repository import Distribution, InputDistribution, Manifest

MAX_DRAWN = 12
"""Maximum input columns drawn; the manifest has all."""

_BLUE, _GREY = "#1f6fb4", "#b0b0b0"


def draw_latency(manifest: Manifest, path: Path) -> None:
    """Plot the time per row against the rows of a run. Raises OSError."""
    figure = _figure(6, 3)
    axes = figure.add_subplot()
    rows = list(manifest.latency_ms)
    places = np.arange(len(rows))
    after = [manifest.latency_ms[one].after / one for one in rows]
    before = [manifest.latency_ms[one].before for one in rows]
    if all(one is not None for one in before):
        each = [(one or 0.0) / size for one, size in zip(before, rows, strict=True)]
        axes.bar(places - 0.2, each, 0.4, color=_GREY, label="before")
        axes.bar(places + 0.2, after, 0.4, color=_BLUE, label="published")
        axes.legend(frameon=False)
    else:
        axes.bar(places, after, 0.5, color=_BLUE)
    axes.set_xticks(places, [str(one) for one in rows])
    axes.set_xlabel("rows in a run")
    axes.set_ylabel("ms for each row")
    _save(figure, path)


def draw_features(features: Mapping[str, InputDistribution], path: Path) -> None:
    """Plot the distribution of the first columns. Raises OSError."""
    columns = [
        (name if len(feature.columns) == 1 else f"{name} [{place}]", one)
        for name, feature in features.items()
        for place, one in enumerate(feature.columns)
    ][:MAX_DRAWN]
    height = -(-len(columns) // 4)
    figure = _figure(9, 1.9 * height)
    for place, (title, one) in enumerate(columns, 1):
        axes = figure.add_subplot(height, min(4, len(columns)), place)
        axes.set_title(title[:30].replace("$", r"\$"), fontsize=8)
        axes.tick_params(labelsize=7)
        axes.set_yticks([])
        _draw(axes, one)
    _save(figure, path)


def _draw(axes: Any, one: Distribution) -> None:
    if one.shares:
        listed = list(one.shares.items())[:10]
        labels = [text[:10].replace("$", r"\$") for text, _ in listed]
        axes.bar(np.arange(len(listed)), [share for _, share in listed], color=_BLUE)
        axes.set_xticks(np.arange(len(listed)), labels, rotation=45, ha="right")
    elif one.quantiles:
        # A twentieth of the values is between two edges: narrow intervals are dense.
        edges = np.asarray(one.quantiles)
        widths = np.maximum(np.diff(edges), (edges[-1] - edges[0]) / 200 or 1e-9)
        axes.bar(edges[:-1], 1 / widths, widths, align="edge", color=_BLUE)


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: Any, path: Path) -> None:
    import matplotlib as mpl

    with mpl.rc_context({"svg.hashsalt": "cohort", "svg.fonttype": "none"}):
        figure.savefig(path, format="svg", metadata={"Date": None})
