"""Results of `make converters` for docs/reports/conversions.md: one line of JSON per model."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def record(found: dict[str, Any], *, source: str, accuracy: float | None = None) -> None:
    """Keep what a conversion found, where CONVERTERS_RECORD names a file."""
    path = os.environ.get("CONVERTERS_RECORD")
    if path:
        kept = ("framework", "what", "opset", "versions", "rows", "difference", "bytes")
        line = {**{key: found[key] for key in kept}, "source": source, "accuracy": accuracy}
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
