"""Plot of the differences of two models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cohort.comparing import Numbers
from cohort.errors import quoted
from cohort_prepare.failures import Misused
from cohort_prepare.onnx_files import temporary_folder
from cohort_prepare.verifying.comparison import OutputTotals, Verification

MAX_OUTPUTS = 4
"""Maximum number of plots, one below the other."""

SOURCE, MODEL = "#1f4e79", "#c0504d"


def draw_differences(found: Verification, path: Path) -> None:
    """Plot each float output: the model's values against the source's, and their differences.

    Writes a PNG to `path`. Raises Misused if nothing can be plotted, and OSError.
    """
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib.figure import Figure

    drawn = [one for one in found.outputs.values() if any(len(p[0]) for p in one.points)]
    if not drawn:
        raise Misused("nothing to plot: no float output was compared")
    drawn = drawn[:MAX_OUTPUTS]
    figure = Figure(figsize=(10, 4.4 * len(drawn)), dpi=110, layout="constrained")
    rows = figure.subplots(len(drawn), 2, squeeze=False)
    for (left, right), output in zip(rows, drawn, strict=True):
        source = np.concatenate([points for points, _ in output.points])
        model = np.concatenate([points for _, points in output.points])
        _scatter(left, output, source, model)
        _histogram(right, np.abs(model - source))
    with temporary_folder(path.absolute().parent) as folder:
        made = folder / "plot.png"
        figure.savefig(made, format="png")
        made.replace(path)


def _scatter(axes: Any, output: OutputTotals, source: Numbers, model: Numbers) -> None:
    x, y = source, model
    low, high = float(min(x.min(), y.min())), float(max(x.max(), y.max()))
    axes.plot([low, high], [low, high], color="0.6", linewidth=1, zorder=1)
    axes.scatter(x, y, s=9, alpha=0.5, color=SOURCE, linewidths=0, zorder=2)
    axes.set(
        title=f"output {quoted(output.name)}: {len(x):,} values; equal on the line",
        xlabel="source",
        ylabel="model",
    )
    if max(abs(low), abs(high)) > 1e3 * max(float(np.median(np.abs(x))), 1e-12):
        axes.set_xscale("symlog", linthresh=1)
        axes.set_yscale("symlog", linthresh=1)
    axes.grid(alpha=0.25)


def _histogram(axes: Any, distance: Numbers) -> None:
    some = distance[distance > 0]
    equal = 1 - some.size / distance.size
    axes.set(title=f"differences; {equal:.0%} of the values are equal")
    axes.set(xlabel="absolute difference", ylabel="values")
    if some.size:
        low, high = np.log10(some.min()), np.log10(some.max())
        bins = np.logspace(low - 0.1, high + 0.1, 40)
        axes.hist(some, bins=bins, color=MODEL, alpha=0.8)
        axes.set_xscale("log")
        axes.set_xlabel(f"absolute difference, {some.max():.2g} at most")
    else:
        axes.text(0.5, 0.5, "all equal", ha="center", va="center", transform=axes.transAxes)
    axes.grid(alpha=0.25)
