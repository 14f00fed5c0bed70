"""The table on the screen, and RESULTS.md with its plots.

`python -m benchmarks.report` writes them again from build/bench/results.json.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.table import Table

from benchmarks import machine, plots, summary
from benchmarks.measure import Found
from benchmarks.servers import BUILD

FOLDER = Path(__file__).parent
HEADS = (
    "workload", "conns", "server", "req/s", "min-max", "p50 ms", "p99 ms", "CPU µs",
    "MB", "refused", "errors", "hot", "x tutorial", "x bare", "x single",
)  # fmt: skip
APART = "\n## Measured apart\n"
MARK = {True: "reached", False: "**not reached**", None: "not measured"}


def rows(found: Found) -> Iterator[list[str]]:
    """Every row of the table, as text."""
    table = summary.cells(found)
    for workload in dict.fromkeys([*found.bare, *(key[0] for key in table), *found.failed]):
        bare = summary.loops(found, workload)
        for name, loop in bare.items():
            shape = f"{name}: {loop['batch']} at once, {loop['instances']}x{loop['threads']}"
            yield [
                workload, "-", shape, f"{loop['rate']:,.0f}", "", _ms(loop["p50"]),
                _ms(loop["p99"]), f"{loop['cpu_us']:,.1f}", f"{loop['memory_mb']:,.0f}",
                "", "", "", "", "", "",
            ]  # fmt: skip
        for (of, server, many), cell in table.items():
            if of != workload:
                continue
            tutorial = table.get((of, "tutorial", many))
            hot = cell["hot"]
            low, high = cell["spread"]
            yield [
                workload, str(many), server, f"{cell['rate']:,.0f}", f"{low:,.0f}-{high:,.0f}",
                _ms(cell["p50"]), _ms(cell["p99"]), f"{cell['cpu_us']:,.1f}",
                f"{found.memory_mb.get(of, {}).get(server, 0):,.0f}",
                f"{cell['refused']:,.0f}", f"{cell['errors']:,.0f}",
                f"{hot:.1%}" if hot is not None else "?" if server == "cohort" else "",
                f"{cell['rate'] / tutorial['rate']:.2f}" if tutorial else "",
                *(f"{cell['rate'] / loop['rate']:.2f}" for loop in bare.values()),
            ]  # fmt: skip
        for server, why in found.failed.get(workload, {}).items():
            short = " ".join(why.split())[-90:]
            yield [workload, "-", f"{server}: {short}", *[""] * (len(HEADS) - 3)]


def table(found: Found) -> Table:
    """Return the one table, for the screen."""
    shown = Table(title="Medians over rounds")
    for number, head in enumerate(HEADS):
        shown.add_column(head, justify="left" if number in {0, 2} else "right", no_wrap=True)
    for row in rows(found):
        row[2] = row[2] if len(row[2]) <= 42 else row[2][:41] + "…"
        shown.add_row(*row, *[""] * (len(HEADS) - len(row)))
    return shown


def targets_table(found: Found) -> Table:
    """Return the table of targets, for the screen."""
    shown = Table("work", "at least", "measured", "", title="Targets of issue 4")
    for one in summary.targets(found):
        shown.add_row(one.work, one.aim, one.value, MARK[one.reached].strip("*"))
    return shown


def write(found: Found, folder: Path = FOLDER) -> None:
    """Write RESULTS.md and plots/*.svg."""
    (folder / "plots").mkdir(parents=True, exist_ok=True)
    names = []
    for name, svg in drawings(found):
        (folder / "plots" / f"{name}.svg").write_text(svg)
        names.append(name)
    results = folder / "RESULTS.md"
    before = results.read_text() if results.exists() else ""
    _, apart, kept = before.partition(APART)  # which other commands measured
    results.write_text("\n".join(text(found, names)) + apart + kept)


def text(found: Found, drawn: list[str]) -> Iterator[str]:
    """Yield the lines of RESULTS.md."""
    about = found.about
    yield "# Results\n\n`make bench` writes this page; [README.md](README.md) explains it.\n"
    for name in ("began", "machine", "kernel", "python", "versions", "others", "wrk", "cohort"):
        yield f"- {name}: {about.get(name, '?')}"
    loads = (about.get("load_before"), about.get("load_after"))
    shown = [" / ".join(f"{one:.1f}" for one in of) if of else "?" for of in loads]
    yield f"- load average (1/5/15 min) before {shown[0]}, after {shown[1]}"
    yield f"- {about.get('rounds', '?')} rounds of {about.get('seconds', '?')} s or more\n"
    yield "## Targets\n"
    yield from markdown(
        ("work", "at least", "measured", ""),
        [[one.work, one.aim, one.value, MARK[one.reached]] for one in summary.targets(found)],
    )
    yield "\nFurther results: [kinds of requests](results/lane.md), [gRPC](results/grpc.md).\n"
    yield "\n## Closed loop\n"
    yield from markdown(HEADS, [[*row, *[""] * (len(HEADS) - len(row))] for row in rows(found)])
    if found.open:
        yield "\n## Open loop, MLP\n"
        yield from markdown(
            ("server", "of capacity", "asked/s", "sent/s", "p50 ms", "p99 ms", "p99.9 ms",
             "worst ms", "generator's lag p99 ms", "CPU µs/req", "failures"),
            [
                [server, f"{share:.0%}", f"{one['asked']:,.0f}", f"{one['sent']:,.0f}",
                 *(_ms(one[name]) for name in ("p50", "p99", "p999", "worst", "lag_p99")),
                 f"{one['cpu_us']:.1f}", f"{one['failures']:.0f}"]
                for (server, share), one in summary.opened(found).items()
            ],
        )  # fmt: skip
    if of := found.growth:
        yield (
            f"\n## Memory of Cohort\n\nResident memory was {of['mb_after_10000']:.1f} MB after "
            f"{of['asked_by_10000']:,.0f} requests, and {of['mb_after_many']:.1f} MB after "
            f"{of['many']:,.0f} ({of['ratio']:.3f} times)."
        )
    if of := found.neighbour:
        yield "\n## A fast model next to a saturated ResNet-50\n"
        yield from markdown(("MLP, 300 requests/s", "p50 ms", "p99 ms", "lag p99 ms"), [
            [shown, *(_ms(of[f"{name}_{one}"]) for one in ("p50", "p99", "lag_p99"))]
            for name, shown in (("alone", "alone"), ("beside", "next to it"))
        ])  # fmt: skip
        yield f"\nResNet-50 answered {of['slow_rate']:.1f} requests/s at the same time."
    if sites := found.copies.get("sites"):
        yield "\n## Copies of a 600 KB binary body\n\nBytes allocated over bytes sent, by line. "
        yield "The read from the socket (asyncio/runners.py) is the arrival, every other a copy.\n"
        yield from markdown(("line", "copies"), [[of, str(many)] for of, many in sites.items()])
    yield "\n## Plots\n"
    yield from (f"![{name}](plots/{name}.svg)" for name in drawn)
    yield ""


def drawings(found: Found) -> Iterator[tuple[str, str]]:
    """Name and SVG of each plot."""
    table = summary.cells(found)
    for workload in dict.fromkeys(key[0] for key in table):
        groups: dict[str, dict[str, float]] = {}
        for (of, server, many), cell in table.items():
            if of == workload:
                groups.setdefault(f"{many} conns", {})[server] = cell["rate"]
        loop = summary.loops(found, workload).get("bare loop, best")
        heavy = loop["rate"] if loop and loop["rate"] < 2000 else None  # else off the scale
        yield workload, plots.bars(f"{workload}: requests per second", groups, "req/s", heavy)
    shares: dict[str, dict[str, float]] = {}
    for (server, share), one in summary.opened(found).items():
        shares.setdefault(f"{share:.0%} of capacity", {})[server] = one["p99"] * 1e3
    if shares:
        yield "open-loop", plots.bars("MLP, open loop: p99", shares, "ms")


def write_page(
    path: Path, title: str, says: str, command: str, run: str, table: Iterable[str]
) -> None:
    """Write a separate page with a table of results, and the machine they were measured on."""
    about = machine.describe()
    lines = [
        f"# {title}\n",
        f"Written by `{command}`, {time.strftime('%Y-%m-%d %H:%M %Z')}.\n{says}\n",
        *(f"- {name}: {about[name]}" for name in ("machine", "python", "versions", "cohort")),
        f"- {run}\n",
        *table,
    ]
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def markdown(heads: tuple[str, ...], lines: list[list[str]]) -> Iterator[str]:
    """Yield the lines of a table."""
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    yield from (f"| {' | '.join(one.replace('|', '/') for one in line)} |" for line in lines)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.3f}" if seconds < 0.01 else f"{seconds * 1e3:,.0f}"


if __name__ == "__main__":
    write(Found(**json.loads((BUILD / "results.json").read_text())))
