"""Pipelines whose file declares the inputs and outputs of callers, as a config does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cohort import Runtime
from cohort.errors import NotReady
from tests import onnx_models

ROWS = np.array([[0.5, -1.25, 3.0, 0.001], [1.0, 2.0, 3.0, 4.0]], np.float32)

PIPELINE = """\
inputs: {x: {datatype: FP32, missing: 0}}
outputs:
  p: {from: first.y, softmax: true, labels: labels.txt, top: 2}
steps:
  first: {model: mlp, inputs: {x: x}}
"""


def folder(tmp_path: Path, text: str, labels: str = "a\nb\nc\n") -> dict[str, Any]:
    models = tmp_path / "models"
    onnx_models.save(onnx_models.mlp(), models / "mlp/1/model.onnx")
    (models / "whole").mkdir()
    (models / "whole/pipeline.yaml").write_text(text)
    (models / "whole/labels.txt").write_text(labels)
    return {"models": models, "state": tmp_path / "state", "cache": tmp_path / "cache"}


async def test_outputs_are_finished_and_labelled(tmp_path: Path) -> None:
    """The numbers are the softmax of the step's, and the output knows its labels."""
    async with Runtime(**folder(tmp_path, PIPELINE)) as runtime:
        plain: Any = await runtime.infer("mlp", {"x": ROWS})
        answer: Any = await runtime.infer("whole", {"x": ROWS})
        powers = np.exp(plain["y"] - plain["y"].max(axis=1, keepdims=True))
        wanted = powers / powers.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(answer["p"], wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("text", "labels", "said"),
    [
        (PIPELINE, "a\nb\n", r"whole/pipeline\.yaml: outputs\.p\.labels: 2 labels .* 3 columns"),
        (PIPELINE.replace("top: 2", "top: 0"), "a\nb\nc\n", r"outputs\.p\.top"),
        (PIPELINE.replace("softmax", "softmin"), "a\nb\nc\n", "softmin"),
    ],
)
async def test_what_does_not_fit_is_named(
    tmp_path: Path, text: str, labels: str, said: str
) -> None:
    """The error has the key, as for a config."""
    async with Runtime(**folder(tmp_path, text, labels)) as runtime:
        with pytest.raises(NotReady, match=said):
            await runtime.infer("whole", {"x": ROWS})


async def test_a_model_with_state_is_no_step(tmp_path: Path) -> None:
    """The reason names the step: its requests would be of no sequence."""
    settings = folder(tmp_path, "steps: {a: {model: mlp, inputs: {a: x}}}\noutputs: {y: a.sum}\n")
    onnx_models.save(onnx_models.two_inputs(), tmp_path / "models/mlp/1/model.onnx")
    (tmp_path / "models/mlp/config.yaml").write_text("state: {b: difference}\n")
    async with Runtime(**settings) as runtime:
        with pytest.raises(NotReady, match="step 'a': model 'mlp' has state"):
            await runtime.infer("whole", {"x": ROWS})
