"""OpenAI's own client, LiteLLM and LangChain, from PyPI, unchanged, against a parrot."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import text_models
from tests.aviary import listening, open_aviary
from tests.e2e.processes import ROOT, cohort
from tests.http.openai.bad_requests import WRONG

PYTHON = ROOT / ".venv-clients/bin/python"
CALLS = Path(__file__).with_name("openai_calls.py")

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(), reason="the clients are missing: make .venv-clients/clients.stamp"
)

TOWN = {"name": "Ulm", "people": 126000}


async def ask_all(folder: Path, embeddings: str) -> dict[str, Any]:
    """Run the clients in their environment, against a server in this process.

    embeddings: The address of a process that serves an encoder.
    """
    wrong = {name: [one.route, one.changes] for name, one in WRONG.items()}
    async with open_aviary(folder) as aviary, listening(aviary):
        process = await asyncio.create_subprocess_exec(
            *(str(PYTHON), str(CALLS), aviary.url, "m", embeddings, "encoder"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        printed, complaints = await process.communicate(json.dumps(wrong).encode())
    assert process.returncode == 0, complaints.decode()
    answers: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return answers


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("embeddings")
    text_models.save(
        folder / "models/encoder", "inputs: {text: {tokenizer: tokenizer.json, max_length: 8}}\n"
    )
    with cohort(folder / "models", folder) as server:
        return asyncio.run(ask_all(tmp_path_factory.mktemp("aviary"), server.url))


def test_openais_client_is_answered(answers: dict[str, Any]) -> None:
    """Whole, as a stream, with tools, with a structure, and for texts and models."""
    assert answers["openai"] == {
        "whole": "one two",
        "tokens": 4,
        "headers": ["1", 200],
        "stream": "one two",
        "stream tokens": 2,
        "calls": [["look", "{}"]],
        "finish": "tool_calls",
        "after": "seen it",
        "parsed": TOWN,
        "stream parsed": TOWN,
        "texts": ["a b", "c"],
        "listed": ["m"],
        "retrieved": "m",
    }
    assert answers["async"] == {"many": [f"number {number}" for number in range(8)]}


@pytest.mark.parametrize("name", WRONG)
def test_openais_client_raises_the_error(answers: dict[str, Any], name: str) -> None:
    """Its exception, the field and the code are those of the request's fault."""
    wrong = WRONG[name]
    assert answers["wrong"][name] == [f"{wrong.exception}Error", wrong.param, wrong.code]


def test_openais_client_knows_which_model_is_missing(answers: dict[str, Any]) -> None:
    """The path of one model is shared with TensorFlow Serving's clients."""
    assert answers["wrong"]["retrieved"] == ["model", "model_not_found"]


def test_litellm_is_answered(answers: dict[str, Any]) -> None:
    """It knows a prompt that is longer than the context."""
    assert answers["litellm"] == {
        "whole": "one two",
        "stream": "one two",
        "calls": ["look"],
        "refused": "ContextWindowExceededError",
    }


def test_langchain_is_answered(answers: dict[str, Any]) -> None:
    """Also with tools, and with structures by a schema and by a tool that must be called."""
    assert answers["langchain"] == {
        "whole": "one two",
        "stream": "one two",
        "calls": ["look"],
        "shaped": TOWN,
        "forced": TOWN,
        "text": "one two",
    }


def test_embeddings_are_the_same_for_all_clients(answers: dict[str, Any]) -> None:
    """They are those of the model, in FP32, and token ids are refused by name."""
    found = answers["embeddings"]
    assert len(found["openai"]) == 2
    for one in ("litellm", "langchain"):
        assert np.allclose(found[one], found["openai"], rtol=1e-6), one
    assert np.allclose(found["plain"], found["openai"][:1], rtol=1e-6)
    assert np.allclose(found["langchain query"], found["openai"][1], rtol=1e-6)
    assert (found["tokens"], found["refused"]) == ([7, 7], "input")
