"""OpenAI's own client, LiteLLM and LangChain against a language model of the real process."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from models.decoder import write_decoder
from tests.clients.test_openai import CALLS, PYTHON
from tests.e2e.processes import cohort
from tests.waiting import PATIENCE

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(), reason="the clients are missing: make .venv-clients/clients.stamp"
)


def test_all_clients_get_the_same_text(tmp_path: Path) -> None:
    """Whole and as streams; a structured answer is parsed by its class."""
    write_decoder(tmp_path / "models/letters/1")
    with cohort(tmp_path / "models", tmp_path) as server:
        command = [str(PYTHON), str(CALLS), server.url, "letters", "any"]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout.splitlines()[-1])
    texts = answers["texts"]
    assert texts[0]
    assert texts == [texts[0]] * 5
    assert isinstance(answers["parsed"]["happy"], bool)
    assert isinstance(answers["shaped"]["happy"], bool)
