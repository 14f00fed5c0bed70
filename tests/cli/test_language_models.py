"""`cohort check` and `cohort profile` of the bundled language model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cohort.cli.language_models import in_words
from cohort.cli.options import OK
from cohort.registry import TextDescription
from tests.cli.test_cli import run
from tests.e2e.processes import MODELS

NAME = "smalltalk"
bundled = pytest.mark.skipif(not (MODELS / NAME).exists(), reason="the model is not bundled")


@bundled
def test_check_says_what_it_is(tmp_path: Path) -> None:
    """Its inputs and outputs are texts, not those of its decoder."""
    (tmp_path / NAME).symlink_to(MODELS / NAME)
    done = run("check", str(tmp_path), COHORT_CACHE=str(tmp_path / "cache"))
    assert done.exit_code == OK, done.output
    assert "text_input BYTES" in done.output
    assert f"{NAME}/1: language model, it chats: at most " in done.output


@bundled
def test_profile_describes_it(tmp_path: Path) -> None:
    """There are no runs to measure."""
    asked = ("profile", NAME, "--models", str(MODELS), "--json")
    done = run(*asked, COHORT_CACHE=str(tmp_path))
    assert done.exit_code == OK, done.output
    found = json.loads(done.stdout)["language_model"]
    assert found["chat"] is True
    assert found["context_length"] > 0
    assert found["cache_bytes"] > 0


def test_a_model_without_a_template_continues_texts() -> None:
    """The sentence has the limits."""
    assert in_words(TextDescription(512, chats=False, cache_bytes=3 << 20)) == (
        "language model, without a chat template, it continues texts: at most 512 tokens of a "
        "prompt and its answer; its cache takes at most 3 MiB"
    )
