"""The live view over several workers."""

from __future__ import annotations

import json
from pathlib import Path

import httpx

from tests.e2e.processes import MODELS, cohort

ROW = {"inputs": {"features": [[5.1, 3.5, 1.4, 0.2]]}}


def test_a_viewer_sees_what_all_workers_answer(tmp_path: Path) -> None:
    """Its own connection may be at any of them."""
    with cohort(MODELS, tmp_path, workers=2) as server:
        with httpx.stream("GET", f"{server.url}/playground/data/live") as response:
            lines = response.iter_lines()
            next(line for line in lines if line.startswith("data: ["))
            for _ in range(20):
                httpx.post(f"{server.url}/models/iris/predict", json=ROW).raise_for_status()
            total = 0
            for line in lines:
                if line.startswith("data: ["):
                    for sample in json.loads(line.removeprefix("data: ")):
                        total = max([total, *(one["total"] for one in sample["versions"])])
                if total == 20:
                    break
        assert total == 20
