"""Conversions broken on purpose: each is caught, and the message says what to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.prepare.cases import read_cases
from app.prepare.verifying import verify_model, write_worst
from tests import onnx_models
from tests.prepare.verifying.broken_models import BROKEN, SOURCES


@pytest.mark.parametrize("name", SOURCES)
def test_model_agrees_with_itself(name: str, tmp_path: Path) -> None:
    """No false alarm: the same file passes on all generated cases, with no difference at all."""
    path = onnx_models.save(SOURCES[name], tmp_path / "model.onnx")
    found = verify_model(path, path).found
    assert found.good, found.problems
    assert found.cases > 5
    assert all(one.unequal == 0 for one in found.outputs.values())


@pytest.mark.parametrize("name", BROKEN)
def test_broken_conversion_is_caught(name: str, tmp_path: Path) -> None:
    """The message names what was seen and what to do; the worst example shows it again."""
    source, broken, said = BROKEN[name]
    before = onnx_models.save(SOURCES[source], tmp_path / "source.onnx")
    after = onnx_models.save(broken, tmp_path / "model.onnx")
    found = verify_model(before, after).found
    assert not found.good
    assert re.search(said, "; ".join(found.problems)), found.problems
    worst = tmp_path / "worst.npz"
    write_worst(found, after, worst)
    again = verify_model(before, after, inputs=(worst, read_cases(worst)))
    assert not again.found.good
