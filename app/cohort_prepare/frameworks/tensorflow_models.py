"""Keras models and TensorFlow SavedModels, exported by tf2onnx.

tf2onnx's converter for Keras fails on Keras 3, so a function that calls the model is exported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.frameworks import Exported, ExportRequest, Reference
from cohort_prepare.frameworks.callables import call, is_callable_reference
from cohort_prepare.frameworks.onnx_values import name_rows, rename_values, strip_traces

TENSORFLOW_OPSET = 18
"""Maximum of tf2onnx 1.17."""

SERVING = "serving_default"


@dataclass
class TensorflowFunction:
    """A function that is exported and run.

    call: Takes tensors by input name, returns tensors by output name.
    specs: Inputs, `tf.TensorSpec` by name.
    what: Kind of model.
    owner: Object that keeps the variables alive, if the call refers to them weakly; default None.
    """

    call: Any
    specs: Mapping[str, Any]
    what: str
    owner: Any = None


class KerasModels:
    """`.keras` files, and models that a function returns."""

    def load(self, reference: Reference) -> TensorflowFunction:
        """Load the model for inference."""
        import keras

        if is_callable_reference(reference.text):
            model = call(reference.text)
        else:
            model = _load_keras(reference)
        if not isinstance(model, keras.Model):
            raise Misused(f"{reference.text} returns a {type(model).__name__}, not a keras.Model")
        if keras.backend.backend() != "tensorflow":
            raise Misused(
                f"Keras uses {keras.backend.backend()} here: set KERAS_BACKEND=tensorflow, which "
                "can load the model as well"
            )
        return _of_keras(model)

    def export(self, model: TensorflowFunction, request: ExportRequest) -> Exported:
        """Export the model with variable rows."""
        return _export(model, request)

    def run(self, model: TensorflowFunction, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Run the model; outputs are named by its keys, or output, output_1, …."""
        return _run(model, inputs)


class TensorflowModels:
    """Folders with a SavedModel."""

    def load(self, reference: Reference) -> TensorflowFunction:
        """Load the signature that TensorFlow Serving would serve."""
        import tensorflow as tf

        if is_callable_reference(reference.text):
            module = call(reference.text)
        else:
            try:
                module = tf.saved_model.load(reference.text)
            except (OSError, ValueError) as error:
                raise Misused(f"{reference.text} is not a SavedModel: {error}") from error
        signatures = getattr(module, "signatures", {})
        if SERVING not in signatures:
            known = ", ".join(signatures) or "none"
            raise Misused(
                f"{reference.text} has no signature {SERVING!r} (it has {known}): save it with "
                "tf.saved_model.save(module, folder, signatures=function)"
            )
        function = signatures[SERVING]
        specs = function.structured_input_signature[1]
        return TensorflowFunction(function, specs, "SavedModel", module)

    def export(self, model: TensorflowFunction, request: ExportRequest) -> Exported:
        """Export the model with the signature's shapes."""
        return _export(model, request)

    def run(self, model: TensorflowFunction, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Run the model; outputs are named as in the signature."""
        return _run(model, inputs)


def _load_keras(reference: Reference) -> Any:
    import keras

    try:
        return keras.saving.load_model(
            reference.text, compile=False, safe_mode=not reference.trust_pickle
        )
    except (ValueError, OSError) as error:
        text = " ".join(str(error).split())[:500]
        unsafe = "safe_mode" in text or "lambda" in text.lower()
        hint = "; add --trust-pickle to allow its code, if you made the file" if unsafe else ""
        raise Misused(f"{Path(reference.text).name} cannot be loaded: {text}{hint}") from error


def _of_keras(model: Any) -> TensorflowFunction:
    import tensorflow as tf

    if not getattr(model, "inputs", None):
        raise Misused(
            "the Keras model has no inputs yet: call it once on an example, or start it with "
            "keras.Input"
        )
    names = [one.name.split(":")[0] for one in model.inputs]
    specs = {
        name: tf.TensorSpec(one.shape, one.dtype, name=name)
        for name, one in zip(names, model.inputs, strict=True)
    }
    by_key = isinstance(getattr(model, "_inputs_struct", None), Mapping)

    def run(**tensors: Any) -> Any:
        given = tensors if by_key else [tensors[name] for name in names]
        return _by_name(model(given[0] if isinstance(given, list) and len(given) == 1 else given))

    return TensorflowFunction(run, specs, type(model).__name__)


def _by_name(outputs: Any) -> dict[str, Any]:
    if isinstance(outputs, Mapping):
        return dict(outputs)
    if isinstance(outputs, list | tuple):
        return {f"output_{i}" if i else "output": one for i, one in enumerate(outputs)}
    return {"output": outputs}


def _export(model: TensorflowFunction, request: ExportRequest) -> Exported:
    import tensorflow as tf
    import tf2onnx

    text = [name for name, spec in model.specs.items() if spec.dtype == tf.string]
    if text:
        raise Rejected(
            f"input {text[0]!r} is text, which tf2onnx does not support. Export the model from "
            "after its StringLookup or TextVectorization, and look words up in the client"
        )
    names = list(model.specs)
    specs = [
        tf.TensorSpec(_open_rows(spec.shape), spec.dtype, name=name)
        for name, spec in model.specs.items()
    ]

    @tf.function(input_signature=specs)  # type: ignore[untyped-decorator]
    def whole(*tensors: Any) -> Any:
        return model.call(**dict(zip(names, tensors, strict=True)))

    outputs = sorted(whole.get_concrete_function().structured_outputs)  # as TensorFlow flattens
    opset = min(request.opset or TENSORFLOW_OPSET, TENSORFLOW_OPSET)
    tf2onnx.convert.from_function(
        whole, input_signature=specs, opset=opset, output_path=request.out
    )
    made = onnx.load(request.out)
    found = [*(one.name for one in made.graph.input), *(one.name for one in made.graph.output)]
    wanted = [*names, *outputs]
    if len(found) == len(wanted):
        rename_values(made, dict(zip(found, wanted, strict=True)))
    name_rows(made, outputs_too=True)
    strip_traces(made)
    Path(request.out).write_bytes(made.SerializeToString(deterministic=True))
    return Exported(model.what)


def _open_rows(shape: Any) -> Any:
    return [None, *shape[1:]] if shape.rank else shape


def _run(model: TensorflowFunction, inputs: Mapping[str, Any]) -> dict[str, Any]:
    import tensorflow as tf

    unknown = [name for name in model.specs if name not in inputs]
    if unknown:
        raise Misused(f"input {unknown[0]!r} is missing; the inputs are {', '.join(model.specs)}")
    tensors = {
        name: tf.convert_to_tensor(inputs[name], spec.dtype) for name, spec in model.specs.items()
    }
    return {name: np.asarray(value) for name, value in model.call(**tensors).items()}
