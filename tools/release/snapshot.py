"""The surface of the last release, kept as a file."""

from __future__ import annotations

import json
from pathlib import Path

from tools.release.surface import Surface

SNAPSHOT = Path(__file__).with_name("snapshot.json")


def read_snapshot(text: str) -> Surface:
    """Return the surface that `written_snapshot` wrote."""
    found = json.loads(text)
    return Surface(found.pop("version"), found)


def written_snapshot(surface: Surface) -> str:
    """Return a surface as JSON with one line for each name."""
    groups = ",\n".join(
        f"{json.dumps(group)}: {{\n"
        + ",\n".join(
            f"  {json.dumps(name, ensure_ascii=False)}: {json.dumps(facts, ensure_ascii=False)}"
            for name, facts in items.items()
        )
        + "\n}"
        for group, items in surface.groups.items()
    )
    return f'{{\n"version": {json.dumps(surface.version)},\n{groups}\n}}\n'
