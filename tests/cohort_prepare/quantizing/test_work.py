"""The work of the process that quantizes and measures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from pydantic_core import to_jsonable_python

from cohort_prepare.failures import Rejected
from cohort_prepare.quantizing.building import find_quantizable, pre_process
from cohort_prepare.quantizing.job_runner import JobRunner
from cohort_prepare.quantizing.recipes import StaticRecipe
from cohort_prepare.quantizing.verdict import Limits
from cohort_prepare.quantizing.work import (
    Build,
    build_and_compare,
    calibrate,
    search,
)
from tests import onnx_models


def sensitive_model() -> onnx.ModelProto:
    """Six layers; one channel between the second and the third is 10,000 times the others."""
    model = onnx_models.mlp(features=16, hidden=16, classes=4, layers=5)
    weights = {one.name: one for one in model.graph.initializer}
    for name, index, factor in (
        *(("w1", np.s_[:, 0], 1e4), ("b1", np.s_[0], 1e4)),
        ("w2", np.s_[0, :], 1e-4),
    ):
        values = onnx.numpy_helper.to_array(weights[name]).copy()
        values[index] *= factor
        weights[name].CopyFrom(onnx.numpy_helper.from_array(values, name))
    return model


def test_the_layers_around_an_outlier_are_found(tmp_path: Path) -> None:
    """A scale that fits one channel leaves nothing of the others: two layers are excluded."""
    original, prepared = tmp_path / "original.onnx", tmp_path / "prepared.onnx"
    onnx_models.save(sensitive_model(), original)
    pre_process(original, prepared)
    x = np.random.default_rng(0).standard_normal((200, 16)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", x=x)
    rows = tmp_path / "rows.npz"
    given = {"prepared": str(prepared), "samples": str(rows), "folder": str(tmp_path)}
    assert calibrate(**given, methods=["minmax"]) == 200
    recipe = StaticRecipe("minmax", "uint8", reduce_range=True, convolutional=False)
    (tmp_path / "out").mkdir()
    build = Build(recipe, prepared, original, tmp_path, tmp_path / "out" / "q.onnx", rows, None)
    building = to_jsonable_python(build)
    assert build_and_compare(building=building)["cosine"] < 0.99
    nodes = find_quantizable(onnx.load(prepared)).quantizable
    arguments = {"building": build, "nodes": nodes, "limits": Limits()}
    found = search(**to_jsonable_python(arguments), seconds=60)
    assert found["excluded"] == sorted(nodes[1:3])
    assert found["complete"]


def test_what_goes_wrong_is_raised(tmp_path: Path) -> None:
    """A file that is not there, in a sentence, as for any other command."""
    runner = JobRunner(tmp_path, 60, lambda _: None)
    arguments = {"prepared": tmp_path / "no.onnx", "samples": "rows.npz", "methods": ["minmax"]}
    with pytest.raises(Rejected, match="not found"):
        runner.ask(int, "calibrate", "calibrating", **arguments, folder=tmp_path)
    with pytest.raises(Rejected, match="calibrating failed: ValidationError"):
        runner.ask(int, "calibrate", "calibrating", methods=["nothing"])


def test_a_job_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    """The error names the option that allows more time."""
    with pytest.raises(Rejected, match=r"reading took longer than 0 s; increase --timeout"):
        JobRunner(tmp_path, 0, lambda _: None).ask(int, "calibrate", "reading")
