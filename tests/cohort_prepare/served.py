"""A model of a framework taken the whole way, and asked over HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from tests.e2e.processes import ROOT, cohort, quick_command
from tests.waiting import PATIENCE

RECIPE = """
source: training:model
framework: {framework}
verify:
  inputs: test.npz
  labels: labels.npy
optimize:
  steps: [slim]
  inputs: test.npz
quantize:
  recipe: static
  calibration: train.npz
  inputs: test.npz
  labels: labels.npy
  methods: [minmax]
  weight_bits: 8
publish:
  name: digits
  to: models
  examples: test.npz
  labels: labels.npy
"""


def prepare(folder: Path, framework: str, *, data: str = "training.py") -> dict[str, Any]:
    """Take `training:model` of the folder the whole way, in processes: what was found.

    data: The script that writes the rows that the recipe reads.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for command in (
        [sys.executable, data],
        [*quick_command(), "prepare", "--json", "recipe.yaml"],
    ):
        (folder / "recipe.yaml").write_text(RECIPE.format(framework=framework))
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(done.stdout))


def served_accuracy(folder: Path) -> float:
    """The share of test.npz that the published version has right, asked over HTTP."""
    with np.load(folder / "test.npz") as file:
        ((name, rows),) = ((one, file[one]) for one in file.files)
    labels = np.load(folder / "labels.npy")
    with cohort(folder / "models", folder) as server:
        answer = httpx.post(
            f"{server.url}/models/digits/predict",
            json={"inputs": {name: rows.tolist()}},
            timeout=PATIENCE,
        )
        assert answer.status_code == 200, answer.text
    output = manifest_of(folder)["accuracy"]["output"]
    answered = np.array(answer.json()["outputs"][output])
    return float(np.mean((answered.argmax(1) if answered.ndim > 1 else answered) == labels))


def manifest_of(folder: Path) -> dict[str, Any]:
    """The manifest of the first version."""
    return dict(json.loads((folder / "models/digits/1/manifest.json").read_text()))
