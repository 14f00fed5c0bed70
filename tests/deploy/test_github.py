"""The workflow that publishes a model on a tag: its steps run here as they would there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from ruamel.yaml import YAML

from tests.cohort_prepare.test_prepared import TRAINING
from tests.e2e.processes import ROOT, write_quick_command

WORKFLOW: Any = YAML(typ="safe", pure=True).load(
    (ROOT / "deploy/github/publish-model.yml").read_text(encoding="utf-8")
)

RECIPE = """
source: training:model
framework: sklearn
verify: {inputs: test.npz, labels: labels.npy}
publish: {name: digits, to: models, examples: test.npz, labels: labels.npy, sign: key.pem}
"""


def run_steps(folder: Path, **secrets: str) -> list[int]:
    """Run what the job runs, but for the installation; the exit status of each step.

    As there: after a step that failed, only those run that say `if: always()`.
    """
    codes: list[int] = []
    for step in WORKFLOW["jobs"]["publish"]["steps"]:
        if "run" not in step or step["name"] == "Install":
            continue
        if any(codes) and step.get("if") != "always()":
            continue
        given = {
            name: secrets.get(text.removeprefix("${{ secrets.").removesuffix(" }}"), "")
            for name, text in step.get("env", {}).items()
        }
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=folder,
            env={
                **{k: v for k, v in os.environ.items() if not k.startswith("COHORT_")},
                **{name: text for name, text in given.items() if text},
                "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT),
                "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        codes.append(done.returncode)
    return codes


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A model's repository, and the programs that the runner has."""
    (tmp_path / "training.py").write_text(TRAINING)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    write_quick_command(tmp_path)
    return tmp_path


def test_a_tag_publishes_a_signed_version(checkout: Path) -> None:
    """The summary reports it, and the key file is removed."""
    key = Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    assert not any(run_steps(checkout, COHORT_SIGNING_KEY=key.decode().strip()))
    files = {one.name for one in (checkout / "models/digits/1").iterdir()}
    assert files >= {"model.onnx", "manifest.json", "manifest.sig", "MODEL.md"}
    assert (checkout / "summary.md").read_text().startswith("## Published")
    assert not (checkout / "key.pem").exists()


def test_a_model_that_cannot_be_made_fails_the_job(checkout: Path) -> None:
    """The summary has the reason, and no version and no key is left."""
    training = (checkout / "training.py").read_text()
    (checkout / "training.py").write_text(
        training.replace("    return make", "    raise RuntimeError('no data')\n    return make")
    )
    codes = run_steps(checkout, COHORT_SIGNING_KEY="no key")
    assert 1 in codes
    assert "no data" in (checkout / "summary.md").read_text()
    assert not (checkout / "models").exists()
    assert not (checkout / "key.pem").exists()
