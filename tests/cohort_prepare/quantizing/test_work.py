"""What the process does that quantizes and measures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from cohort_prepare.quantizing.building import find_quantizable, pre_process
from cohort_prepare.quantizing.recipes import StaticRecipe
from cohort_prepare.quantizing.verdict import Limits
from cohort_prepare.quantizing.work import (
    ANSWERS,
    JOBS,
    Answer,
    Build,
    Calibrate,
    QuantizeJob,
    Search,
    do_quantize_job,
)
from tests import onnx_models


def done(job: QuantizeJob, folder: Path) -> Answer:
    """What the process answers."""
    (folder / "job.json").write_bytes(JOBS.dump_json(job))
    do_quantize_job(folder / "job.json", folder / "answer.json")
    return ANSWERS.validate_json((folder / "answer.json").read_bytes())


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
    rows = str(tmp_path / "rows.npz")
    assert done(Calibrate(str(prepared), rows, ("minmax",), str(tmp_path)), tmp_path).rows == 200
    recipe = StaticRecipe("minmax", "uint8", reduce_range=True, convolutional=False)
    (tmp_path / "out").mkdir()
    build = Build(
        recipe, str(prepared), str(original), str(tmp_path), str(tmp_path / "out" / "q.onnx"),
        rows, None,
    )  # fmt: skip
    quality = done(build, tmp_path).quality
    assert quality is not None
    assert quality.cosine < 0.99
    nodes = find_quantizable(onnx.load(prepared)).quantizable
    found = done(Search(build, str(tmp_path), nodes, Limits(), 60), tmp_path).found
    assert found is not None
    assert found.excluded == tuple(sorted(nodes[1:3]))
    assert found.complete


def test_what_goes_wrong_is_answered(tmp_path: Path) -> None:
    """A file that is not there, in a sentence."""
    job = Calibrate(str(tmp_path / "nowhere.onnx"), "rows.npz", ("minmax",), str(tmp_path))
    failure = done(job, tmp_path).failure
    assert failure is not None
    assert failure.kind == "rejected"
