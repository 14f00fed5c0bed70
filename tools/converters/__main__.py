"""Write the table of docs/reports/conversions.md: `python -m tools.converters RECORDED`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cohort_prepare.frameworks import FRAMEWORKS
from tools import ROOT

PAGE = ROOT / "docs" / "reports" / "conversions.md"
BEGIN, END = "<!-- table -->", "<!-- end of table -->"
COLUMNS = (
    *("framework", "source", "what it is", "opset"),
    *("largest difference", "right on unseen digits", "versions"),
)


def write_table(recorded: Path) -> None:
    """Write the recorded conversions between the marks of the page."""
    lines = [json.loads(line) for line in recorded.read_text(encoding="utf-8").splitlines()]
    lines.sort(key=lambda found: list(FRAMEWORKS).index(found["framework"]))
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    head = [_line(COLUMNS), _line(["---"] * len(COLUMNS))]
    table = "\n".join([*head, *map(_row, lines)])
    PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")
    print(f"cohort: wrote {PAGE.name}: {len(lines)} models")


def _row(found: dict[str, Any]) -> str:
    accuracy = found["accuracy"]
    cells = (
        FRAMEWORKS[found["framework"]].title,
        f"`{found['source']}`" if " " not in found["source"] else found["source"],
        found["what"],
        found["opset"],
        f"{found['difference']['max_absolute']:.1e} on {found['rows']} rows",
        f"{accuracy:.1%}" if accuracy is not None else "",
        ", ".join(f"{name} {number}" for name, number in found["versions"].items()),
    )
    return _line(cells)


def _line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    write_table(Path(sys.argv[1]))
