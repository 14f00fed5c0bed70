"""Write dashboards/*.json."""

from __future__ import annotations

from pathlib import Path

from deploy.grafana.boards import BOARDS

FOLDER = Path(__file__).parent / "dashboards"

for board in BOARDS:
    (FOLDER / f"{board.uid}.json").write_text(board.json())
