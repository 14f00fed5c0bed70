"""KServe's own client, from PyPI, against the real process."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.processes import ROOT, Cohort

# KServe asks for much that the server does not need, so its client has its own environment.
PYTHON = ROOT / ".venv-clients/bin/python"
CALLS = Path(__file__).with_name("kserve_calls.py")

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(), reason="KServe's client is missing: make .venv-clients/clients.stamp"
)


@pytest.fixture(scope="module")
def told(server: Cohort) -> dict[str, Any]:
    """What the client got to hear, by question."""
    done = subprocess.run([PYTHON, CALLS, server.url], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answers


def test_it_sees_who_is_ready(told: dict[str, Any]) -> None:
    """The server lives and is ready, a model is, and one that is not here is not."""
    assert (told["live"], told["ready"]) == (True, True)
    assert told["model ready"] == [True, False]


def test_it_is_answered_in_every_form(told: dict[str, Any]) -> None:
    """Binary and JSON, in and out, give one answer."""
    for answer in told["iris"]:
        assert answer["id"] == "k-1"
        assert answer["outputs"]["label"] == [0, 2]
        assert answer["outputs"] == told["iris"][0]["outputs"]


def test_its_texts_go_both_ways(told: dict[str, Any]) -> None:
    """Characters outside ASCII and an empty one among them."""
    for answer in told["texts"]:
        assert answer["outputs"]["same"] == [["cat"], ["žluť"], [""]]
        assert answer["outputs"]["code"] == [[1], [-1], [-1]]


def test_its_halves_go_both_ways(told: dict[str, Any]) -> None:
    """FP16, bit for bit."""
    assert told["halves"]["outputs"] == {"y": [[1.5, 2.0, 0.25]]}


def test_it_gets_the_outputs_it_asks_for(told: dict[str, Any]) -> None:
    """And no others."""
    assert told["one output"] == ["label"]


def test_it_raises_our_sentence(told: dict[str, Any]) -> None:
    """With our status."""
    assert told["refused"]["status"] == 400
    assert "input 'features' is missing" in told["refused"]["says"]
