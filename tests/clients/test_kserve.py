"""KServe's own clients, from PyPI, against the real process."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.processes import ROOT, Cohort

# KServe asks for much that the server does not need, so its clients have their own environment.
PYTHON = ROOT / ".venv-clients/bin/python"
CALLS = Path(__file__).with_name("kserve_calls.py")

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(), reason="KServe's clients are missing: make .venv-clients/clients.stamp"
)


@pytest.fixture(scope="module")
def both(server: Cohort) -> dict[str, dict[str, Any]]:
    """The answers that the clients received, by client and question."""
    command = [str(PYTHON), str(CALLS), server.url, server.grpc]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answers: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return answers


@pytest.fixture(params=["rest", "grpc"])
def told(both: dict[str, dict[str, Any]], request: pytest.FixtureRequest) -> dict[str, Any]:
    """The answers that one client received."""
    return both[request.param]


def test_it_sees_who_is_ready(told: dict[str, Any]) -> None:
    """The server lives and is ready, a model is, and one that is not here is not."""
    assert (told["live"], told["ready"]) == (True, True)
    assert told["model ready"] == [True, False]


def test_it_is_answered_in_every_form(told: dict[str, Any]) -> None:
    """Binary and JSON, raw and typed, in and out, give one answer."""
    for answer in told["iris"]:
        assert answer["id"] == "k-1"
        assert answer["outputs"]["label"] == [0, 2]
        assert answer["outputs"] == told["iris"][0]["outputs"]


def test_its_list_of_values_is_filled_where_it_asks_for_typed_answers(
    both: dict[str, dict[str, Any]],
) -> None:
    """`as_numpy` also reads raw answers; `data` does not."""
    assert both["grpc"]["values"] == [[0, 2], []]


def test_its_texts_go_both_ways(told: dict[str, Any]) -> None:
    """Characters outside ASCII and an empty text are among them."""
    for answer in told["texts"]:
        assert answer["outputs"]["same"] == [["cat"], ["žluť"], [""]]
        assert answer["outputs"]["code"] == [[1], [-1], [-1]]


def test_its_halves_go_both_ways(told: dict[str, Any]) -> None:
    """FP16 is the same bit for bit."""
    assert told["halves"]["outputs"] == {"y": [[1.5, 2.0, 0.25]]}


def test_it_gets_the_outputs_it_asks_for(both: dict[str, dict[str, Any]]) -> None:
    """The answer has no other outputs."""
    assert both["rest"]["one output"] == ["label"]
    assert both["grpc"]["one output"] == {"id": "k-1", "version": "1", "outputs": {"label": [0, 2]}}


def test_it_raises_our_sentence(both: dict[str, dict[str, Any]]) -> None:
    """The error has our status and names the wrong field."""
    rest, grpc = both["rest"]["refused"], both["grpc"]["refused"]
    assert rest["status"] == 400
    assert "input 'features' is missing" in rest["says"]
    assert grpc["status"] == "INVALID_ARGUMENT"
    assert "'features'" in grpc["says"]
    assert both["grpc"]["no version"]["status"] == "NOT_FOUND"


def test_it_reads_what_the_server_and_a_model_say_of_themselves(
    both: dict[str, dict[str, Any]],
) -> None:
    """The answers arrive in KServe's own messages over gRPC."""
    assert both["grpc"]["server"] == "cohort"
    assert both["grpc"]["model"] == {
        "name": "iris",
        "versions": ["1"],
        "inputs": [["features", "FP32", [-1, 4]]],
        "outputs": [["label", "INT64", [-1]], ["probabilities", "FP32", [-1, 3]]],
    }
