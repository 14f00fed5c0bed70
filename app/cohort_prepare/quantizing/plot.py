"""Plot of size and speed, with the front of recipes that no other beats in both."""

from __future__ import annotations

from pathlib import Path

from cohort_prepare.failures import Misused
from cohort_prepare.quantizing.measuring import MeasuredPair
from cohort_prepare.quantizing.results import Quantized
from cohort_prepare.quantizing.verdict import Limits, overall, pareto, speeds, why_unacceptable

MIB = 1 << 20

BLUE, GREY, GREEN, DARK = "#1f6fb4", "#b0b0b0", "#2c8a3d", "#303030"


def draw_pareto(result: Quantized, limits: Limits, title: str, path: Path) -> None:
    """Plot the measurements to `path`, a `.png` or `.svg`.

    Raises Misused and OSError.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    front = pareto(result.pairs, limits)
    points = [(1.0, _size(result), "original", DARK, "o")]
    for name, pair in result.pairs.items():
        unusable = bool(why_unacceptable(pair.quality, limits))
        color = GREY if unusable else GREEN if name == result.chosen else BLUE
        label = f"{name}\n{_outputs(pair)}" + (
            "\nrows influence each other" if "influence" in pair.candidate.unbatchable else ""
        )
        size = pair.candidate.size / MIB
        points.append((overall(speeds(pair)), size, label, color, "x" if unusable else "o"))
    corners = sorted(
        (overall(speeds(result.pairs[n])), result.pairs[n].candidate.size / MIB) for n in front
    )
    if len(corners) > 1:
        axes.plot(*zip(*corners, strict=True), color=BLUE, linewidth=1, linestyle="--", zorder=1)
    for number, (speed, size, label, color, marker) in enumerate(points):
        axes.scatter([speed], [size], color=color, marker=marker, s=70, zorder=2)
        below = number % 2
        axes.annotate(
            label,
            (speed, size),
            xytext=(8, -6 if below else 6),
            textcoords="offset points",
            va="top" if below else "bottom",
            fontsize=8,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
            color=color,
        )
    axes.axvline(1.0, color=DARK, linewidth=0.6)
    axes.set_xscale("log")
    ticks = [
        tick for tick in (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 4, 5, 10) if _within(tick, points)
    ]
    axes.set_xticks(ticks, [f"{tick:g}x" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlim(min(point[0] for point in points) / 1.3, max(point[0] for point in points) * 1.9)
    axes.set_ylim(0, max(point[1] for point in points) * 1.25)
    axes.set_xlabel("server speed relative to the original (mean over batch sizes, one thread)")
    axes.set_ylabel("size in MiB")
    axes.set_title(
        f"{title}: {'recommended ' + result.chosen if result.chosen else 'none recommended'}"
    )
    try:
        figure.savefig(path)
    except ValueError as error:
        raise Misused(f"--plot {path}: {error}") from error


def _within(tick: float, points: list[tuple[float, float, str, str, str]]) -> bool:
    speeds_seen = [point[0] for point in points]
    return min(speeds_seen) / 1.3 <= tick <= max(speeds_seen) * 1.9


def _size(result: Quantized) -> float:
    return 0.0 if result.original is None else result.original.size / MIB


def _outputs(pair: MeasuredPair) -> str:
    quality = pair.quality
    if quality.broken:
        return "outputs unusable"
    if (labels := quality.labels) is not None:
        return f"accuracy {(labels.both + labels.gained) / quality.rows:.4f}"
    if quality.decision:
        return f"same decision {1 - quality.changed / quality.rows:.2%}"
    return f"cosine {quality.cosine:.4f}"
