"""Draw the dashboards' panels into docs/guide/pictures, from a minute of load on real servers.

`python -m deploy.grafana.pictures` starts two replicas and a Prometheus, and runs Grafana's
queries. Matplotlib draws the results, not Grafana.
"""

from __future__ import annotations

import asyncio
import math
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, PercentFormatter, StrMethodFormatter

from deploy.grafana import BOARDS, Board, Panel, Query
from deploy.grafana.boards.language_models import LANGUAGE_MODELS
from tests.deploy.fleet import Fleet, ask, fleet, roll_back

FOLDER = Path(__file__).parents[2] / "docs" / "guide" / "pictures"
SECONDS = 60
STEP = 1
VALUES = {
    "__rate_interval": "4s",
    "__range": f"{SECONDS}s",
    "instance": ".*",
    "baseline": "stable",
    "quantile": "0.95",
}
MAX_PANELS = 8  # in a picture

LIMIT = re.compile(r"(objective|limit)$")  # as in board.py

Series = Mapping[str, tuple[list[float], list[float]]]


async def load(running: Fleet) -> None:
    """Raise the load, then lower it; after two thirds of the time, roll the canary back."""
    began = time.monotonic()
    rolled_back = False
    while (now := time.monotonic() - began) < SECONDS:
        if now > SECONDS * 2 / 3 and not rolled_back:
            await asyncio.to_thread(roll_back, running.replicas[0], "digits", "canary")
            rolled_back = True
        many = 40 + round(160 * math.sin(now / SECONDS * math.pi))
        await asyncio.gather(*(ask(one.url, requests=many) for one in running.replicas))
        await asyncio.sleep(0.5)


def asked(running: Fleet, panel: Panel, end: float, model: str) -> Series:
    """Return the panel's lines by legend: times in seconds from the beginning, and values."""
    values = {**VALUES, "model": model}
    found: dict[str, tuple[list[float], list[float]]] = {}
    for query in panel.queries:
        text = re.sub(r"\$(\w+)", lambda name: values[name[1]], query.expression)
        data = running.watched.get(
            "query_range",
            query=text,
            start=f"{end - SECONDS:.3f}",
            end=f"{end:.3f}",
            step=f"{STEP}s",
        )
        for series in data["result"]:
            name = legend(query, series["metric"])
            for number, instance in enumerate(running.instances, 1):
                name = name.replace(instance, f"replica {number}")
            times = [float(at) - end + SECONDS for at, _ in series["values"]]
            found[name] = (times, [float(value) for _, value in series["values"]])
    return found


def legend(query: Query, labels: Mapping[str, str]) -> str:
    """Return the name that Grafana gives to the line."""
    name = query.legend
    for label in re.findall(r"\{\{(\w+)\}\}", query.legend):
        name = name.replace(f"{{{{{label}}}}}", labels.get(label, ""))
    return name.strip() or "(none)"


FORMATS = {
    "s": EngFormatter("s"),
    "bytes": EngFormatter("B"),
    "percentunit": PercentFormatter(1.0),
    "reqps": StrMethodFormatter("{x:g}/s"),
}


def draw(axes: Axes, panel: Panel, series: Series) -> None:
    """Draw one panel."""
    axes.set_title(panel.title, fontsize=9, loc="left")
    for name, (times, values) in sorted(series.items()):
        if panel.kind == "timeline":
            colors = ["green" if value else "red" for value in values]
            axes.scatter(times, [name] * len(times), c=colors, marker="s", linewidths=0)
            continue
        limit = {"linestyle": "--", "color": "red"} if LIMIT.search(name) else {}
        axes.plot(times, values, label=name, linewidth=1, **limit)
    for at in panel.thresholds:
        axes.axhline(at, linestyle="--", color="red", linewidth=0.7)
    axes.set_xlim(0, SECONDS)
    if panel.kind != "timeline" and all(
        value >= 0 for _, values in series.values() for value in values if not math.isnan(value)
    ):
        axes.set_ylim(bottom=0)
    axes.tick_params(labelsize=7)
    axes.grid(visible=True, alpha=0.3)
    if panel.unit in FORMATS:
        axes.yaxis.set_major_formatter(FORMATS[panel.unit])
    if any(series) and panel.kind != "timeline":
        axes.legend(fontsize=6, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)


def picture(running: Fleet, board: Board, end: float) -> None:
    """Draw the first panels over time of a dashboard."""
    panels: Sequence[Panel] = [
        panel for panel in board.panels if not panel.instant and panel.kind != "heatmap"
    ][:MAX_PANELS]
    rows = math.ceil(len(panels) / 2)
    figure, places = plt.subplots(rows, 2, figsize=(11, 2.3 * rows), layout="constrained")
    for axes in places.flat[len(panels) :]:
        axes.axis("off")
    model = "smalltalk" if board is LANGUAGE_MODELS else "digits"
    for axes, panel in zip(places.flat, panels, strict=False):
        draw(axes, panel, asked(running, panel, end, model))
    figure.suptitle(f"{board.title} (drawn by matplotlib, seconds)", fontsize=10)
    figure.savefig(FOLDER / f"{board.uid}.png", dpi=80)
    plt.close(figure)


def main() -> None:
    """Serve under load, run the queries, and draw the results."""
    mpl.use("agg")
    FOLDER.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        fleet(Path(folder), seconds=1, error_limit=0.1) as running,
    ):
        asyncio.run(load(running))
        end = time.time()
        for board in BOARDS:
            picture(running, board, end)
            print(f"drawn: docs/guide/pictures/{board.uid}.png")


if __name__ == "__main__":
    main()
