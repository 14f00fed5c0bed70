"""Comparisons of a model with the result of a step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from cohort.comparing import Rounding
from cohort_prepare.evaluating.cases import Cases, write_cases
from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.optimizing.choices import OPTIMIZE_STEPS
from cohort_prepare.optimizing.measuring import MeasuredChange, check_runs, measure_change
from tests import onnx_models

SAME = OPTIMIZE_STEPS["slim"].allowed


def test_the_same_model_agrees_and_is_timed(tmp_path: Path) -> None:
    """It is timed with each number of rows and when it opens; no difference is found."""
    model = onnx_models.mlp()
    found = _measure(tmp_path, model, model)
    assert (found.problem, found.unbatchable) == ("", "")
    assert found.difference is not None
    assert found.difference.max_absolute == 0
    assert sorted(found.runs) == [1, 8]
    assert found.load is not None
    assert all(one.ratio.median > 0 for one in found.runs.values())


def test_other_outputs_are_said_and_not_timed(tmp_path: Path) -> None:
    """The problem states how far they are off, and where."""
    found = _measure(tmp_path, onnx_models.times(2.0), onnx_models.times(2.1))
    assert "output 'y' is off by" in found.problem
    assert found.runs == {}


def test_overflow_of_float16_is_said(tmp_path: Path) -> None:
    """The problem explains an infinity that replaced a number."""
    lossy = OPTIMIZE_STEPS["fp16"].allowed
    found = _measure(tmp_path, onnx_models.times(1.0), onnx_models.times(float("inf")), lossy)
    assert "exceed 65504" in found.problem


def test_what_does_not_open_is_no_result(tmp_path: Path) -> None:
    """ONNX Runtime's reason is given."""
    broken = onnx_models.mlp()
    del broken.graph.initializer[:]
    assert "cannot open the result" in _measure(tmp_path, onnx_models.mlp(), broken).problem


def test_rows_that_begin_to_influence_each_other_are_said(tmp_path: Path) -> None:
    """It would end batching in service; if they did before, it is not a problem."""
    one, other = onnx_models.identity(), onnx_models.normalized_over_rows()
    found = _measure(tmp_path, one, other, Rounding(1e9, 1e9))
    assert "rows influence each other" in found.problem
    assert _measure(tmp_path, other, other).problem == ""


def test_given_inputs_are_used(tmp_path: Path) -> None:
    """Given inputs decide, also if models agree on generated inputs only."""
    cases = tmp_path / "cases.npz"
    write_cases(cases, Cases({"x": np.zeros((3, 4), np.float32)}))
    models = onnx_models.times(2.0), onnx_models.times(2.1)
    assert _measure(tmp_path, *models).problem
    write_cases(cases, Cases({"x": np.zeros((3, 3), np.float32)}))
    assert _measure(tmp_path, *models, cases=cases).problem == ""
    write_cases(cases, Cases({"z": np.zeros((3, 3), np.float32)}))
    with pytest.raises(Misused, match=r"cases\.npz has 'z', but the model has no such input"):
        _measure(tmp_path, *models, cases=cases)


def test_fixed_rows_are_timed_as_they_are(tmp_path: Path) -> None:
    """A model that takes two rows, and no others, is run with two."""
    found = _measure(tmp_path, onnx_models.fixed_rows(2), onnx_models.fixed_rows(2))
    assert list(found.runs) == [2]
    assert "fixed first dimension" in found.unbatchable


def test_models_that_never_agree_with_themselves_are_refused(tmp_path: Path) -> None:
    """Random outputs cannot be verified."""
    node = helper.make_node("RandomNormalLike", ["x"], ["y"])
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3]) for name in "xy"]
    graph = helper.make_graph([node], "graph", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with pytest.raises(Rejected, match="random operators"):
        check_runs(onnx_models.save(model, tmp_path / "model.onnx"))


def _measure(
    folder: Path,
    one: onnx.ModelProto,
    other: onnx.ModelProto,
    allowed: Rounding = SAME,
    cases: Path | None = None,
) -> MeasuredChange:
    return measure_change(
        onnx_models.save(one, folder / "before.onnx"),
        onnx_models.save(other, folder / "after.onnx"),
        allowed=allowed,
        sizes=(1, 8),
        budget=0.05,
        cases=cases,
    )


def test_every_word_of_a_table_is_looked_up(tmp_path: Path) -> None:
    """A step that spoils weights of tokens beyond the first two is found without given inputs."""
    one, other = (onnx_models.gather(size=50) for _ in range(2))
    (table,) = (w for w in other.graph.initializer if len(w.dims) > 1 or w.dims[0] == 50)
    values = np.array(numpy_helper.to_array(table))
    values[2:] += 1
    table.CopyFrom(numpy_helper.from_array(values, table.name))
    assert "is off by" in _measure(tmp_path, one, other).problem
