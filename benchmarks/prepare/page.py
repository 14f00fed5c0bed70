"""Tables between markers in the guide."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/reports/preparing.md"


def write_table(name: str, text: str) -> None:
    """Put `text` between `<!-- measured NAME -->` and `<!-- end -->` in the page."""
    marks = re.compile(rf"(<!-- measured {name}\b[^>]*-->\n).*?(\n<!-- end -->)", re.DOTALL)
    page, found = marks.subn(
        lambda part: f"{part[1]}{text}{part[2]}", PAGE.read_text(encoding="utf-8")
    )
    if not found:
        raise LookupError(f"{PAGE.name} has no place for {name}")
    PAGE.write_text(page, encoding="utf-8")
