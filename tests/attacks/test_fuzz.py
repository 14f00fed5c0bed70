"""A slice of `make fuzz`: mutated bytes for all code that reads callers' bytes."""

from __future__ import annotations

import importlib
import platform
import sys
from pathlib import Path

import pytest

from tools.fuzz import TARGETS
from tools.fuzz.fuzzing import fuzz, module, replay

RUNS = {
    "files": 8000,
    "heads": 500,
    "json_bodies": 15_000,
    "framing": 40_000,
    "messages": 4000,
    "header_blocks": 20_000,
    "frames": 1500,
    "model_files": 8000,
}
"""Inputs of each target, for some two seconds."""

MAX_SECONDS = 6
SEED = 12

needs_atheris = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64",
    reason="Atheris is built for Linux on x86-64",
)


@pytest.mark.parametrize("target", TARGETS)
def test_what_failed_once_passes(target: str) -> None:
    """Inputs that once failed pass, and so do all inputs that fuzzing begins with."""
    source = importlib.import_module(module(target))
    for data in source.SEEDS:
        source.check(data)


@needs_atheris
@pytest.mark.parametrize("target", TARGETS)
def test_mutations_are_read_rightly(target: str, tmp_path: Path) -> None:
    """The mutations are the same each time, until the code changes."""
    outcome = fuzz(
        target, seed=SEED, folder=tmp_path, runs=RUNS[target], max_total_time=MAX_SECONDS
    )
    assert not outcome.failures, outcome.said[-4000:]
    assert "cov:" in outcome.said


@needs_atheris
def test_an_input_that_fails_is_kept_and_fails_again(tmp_path: Path) -> None:
    """The fuzzing finds a planted fault."""
    (failed,) = fuzz("planted", seed=SEED, folder=tmp_path, runs=100_000).failures
    with pytest.raises(ZeroDivisionError):
        replay(failed)
