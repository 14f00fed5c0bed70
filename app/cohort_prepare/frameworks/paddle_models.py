"""PaddlePaddle layers and saved programs, exported by paddle2onnx."""

from __future__ import annotations

import inspect
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from cohort_prepare.failures import Misused
from cohort_prepare.frameworks import Exported, ExportRequest, Reference
from cohort_prepare.frameworks.callables import call, is_callable_reference
from cohort_prepare.frameworks.onnx_values import name_rows, rename_values, strip_traces

PADDLE_OPSET = 18
"""Default; paddle2onnx 2.1 supports it for most layers."""

PROGRAMS = (".json", ".pdmodel")
"""Suffixes of saved programs: Paddle 3 and earlier."""


@dataclass
class PaddleModel:
    """A layer, or a saved program.

    layer: The layer that runs.
    inputs: Input names, in order.
    saved: Path of the program without its suffix; "" if not saved yet.
    """

    layer: Any
    inputs: list[str]
    saved: str = ""


class PaddleModels:
    """Programs of `paddle.jit.save`, and layers that a function returns."""

    def load(self, reference: Reference) -> PaddleModel:
        """Load the model in evaluation mode."""
        os.environ["POLYGRAPHY_AUTOINSTALL_DEPS"] = "0"  # otherwise the export calls pip
        import paddle

        if is_callable_reference(reference.text):
            layer = call(reference.text)
            if not isinstance(layer, paddle.nn.Layer):
                raise Misused(f"{reference.text} returns a {type(layer).__name__}, not a Layer")
            layer.eval()
            names = list(inspect.signature(layer.forward).parameters)
            return PaddleModel(layer, names)
        path = Path(reference.text)
        if path.suffix not in PROGRAMS or not path.with_suffix(".pdiparams").exists():
            raise Misused(
                f"{path.name} is not a program of paddle.jit.save, which writes NAME.json (before "
                "Paddle 3, NAME.pdmodel) and NAME.pdiparams"
            )
        prefix = str(path.with_suffix(""))
        layer = paddle.jit.load(prefix)
        return PaddleModel(layer, [one.name for one in layer._input_spec()], prefix)

    def export(self, model: PaddleModel, request: ExportRequest) -> Exported:
        """Export the model with variable rows; outputs are named output, output_1, …."""
        import paddle
        import paddle2onnx

        with tempfile.TemporaryDirectory() as folder:
            prefix = model.saved
            if not prefix:
                prefix = str(Path(folder) / "model")
                paddle.jit.save(model.layer, prefix, input_spec=_specs(model, request))
            (program,) = [prefix + one for one in PROGRAMS if Path(prefix + one).exists()][:1]
            paddle2onnx.export(
                program,
                prefix + ".pdiparams",
                request.out,
                opset_version=request.opset or PADDLE_OPSET,
                optimize_tool="None",
            )
        made = onnx.load(request.out)
        outputs = [one.name for one in made.graph.output]
        names = {old: f"output_{i}" if i else "output" for i, old in enumerate(outputs)}
        rename_values(made, names)
        name_rows(made, outputs_too=True)
        strip_traces(made)
        Path(request.out).write_bytes(made.SerializeToString(deterministic=True))
        return Exported(type(model.layer).__name__)

    def run(self, model: PaddleModel, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Run the model."""
        import paddle

        missing = [name for name in model.inputs if name not in inputs]
        if missing:
            raise Misused(f"input {missing[0]!r} is missing; inputs are {', '.join(model.inputs)}")
        with paddle.no_grad():
            found = model.layer(*(paddle.to_tensor(inputs[name]) for name in model.inputs))
        values = found if isinstance(found, list | tuple) else [found]
        return {f"output_{i}" if i else "output": one.numpy() for i, one in enumerate(values)}


def _specs(model: PaddleModel, request: ExportRequest) -> list[Any]:
    """Return the inputs with variable rows, from the example."""
    import paddle

    missing = [name for name in model.inputs if name not in request.example]
    if missing:
        raise Misused(
            "Paddle's exporter needs the inputs' shapes: add --example inputs.npz with the "
            f"arrays {', '.join(model.inputs)} (numpy.savez('inputs.npz', name=array))"
        )
    arrays = {name: np.asarray(request.example[name]) for name in model.inputs}
    return [
        paddle.static.InputSpec([None, *array.shape[1:]], str(array.dtype), name)
        for name, array in arrays.items()
    ]
