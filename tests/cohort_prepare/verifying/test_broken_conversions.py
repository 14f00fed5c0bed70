"""Conversions broken on purpose: each is caught, and the message states what to do."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from cohort_prepare.evaluating.cases import Cases, read_cases
from cohort_prepare.failures import Misused
from cohort_prepare.verifying import verify_model, write_worst
from tests import onnx_models
from tests.cohort_prepare.verifying.broken_models import BROKEN, SOURCES


@pytest.mark.parametrize("name", SOURCES)
def test_model_agrees_with_itself(name: str, tmp_path: Path) -> None:
    """The same file passes on all generated cases, without any difference."""
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


def test_rows_that_give_no_numbers_show_nothing(tmp_path: Path) -> None:
    """If the source gives only NaN, the command reports it and no agreement."""
    before = onnx_models.save(SOURCES["scores"], tmp_path / "source.onnx")
    after = onnx_models.save(BROKEN["logits in place of probabilities"][1], tmp_path / "model.onnx")
    path = tmp_path / "rows.npz"
    rows = np.full((8, 4), np.nan, np.float32)
    with pytest.raises(Misused, match=r"only NaN or infinity.* --inputs"):
        verify_model(before, after, inputs=(path, Cases({"x": rows})))


def test_outputs_in_given_rows_are_told_to_be_of_no_use(tmp_path: Path) -> None:
    """Verifying runs the source; outputs in the file are not read."""
    model = onnx_models.save(SOURCES["scores"], tmp_path / "model.onnx")
    rows = np.ones((8, 4), np.float32)
    cases = Cases({"x": rows}, {"y": rows})
    found = verify_model(model, model, inputs=(tmp_path / "rows.npz", cases)).found
    assert found.good
    assert "rows.npz are ignored: the source's outputs are used" in " ".join(found.notes)
