"""The same model in Triton's Python backend: its wheel has no ONNX Runtime backend.

MODEL names the file. Requests of one batch, which Triton makes of equal shapes, share a run.
"""

import os
import sys

sys.path.insert(0, os.environ["PACKAGES"])  # the backend's Python does not read PYTHONPATH

import numpy as np
import onnxruntime as ort
import triton_python_backend_utils as pb  # type: ignore[import-not-found]

KINDS = {"tensor(float)": "TYPE_FP32", "tensor(int64)": "TYPE_INT64"}
MOST = 64


def _session() -> ort.InferenceSession:
    return ort.InferenceSession(os.environ["MODEL"], providers=["CPUExecutionProvider"])


def _described(one: ort.NodeArg) -> dict[str, object]:
    dims = [size if isinstance(size, int) else -1 for size in one.shape[1:]]
    return {"name": one.name, "data_type": KINDS[one.type], "dims": dims or [1]}


class TritonPythonModel:
    """The class that the backend loads by this name."""

    @staticmethod
    def auto_complete_config(config: object) -> object:
        session = _session()
        config.set_max_batch_size(MOST)  # type: ignore[attr-defined]
        config.set_dynamic_batching()  # type: ignore[attr-defined]
        for one in session.get_inputs():
            config.add_input(_described(one))  # type: ignore[attr-defined]
        config.add_output(_described(session.get_outputs()[0]))  # type: ignore[attr-defined]
        return config

    def initialize(self, _: dict[str, str]) -> None:
        self.session = _session()
        self.inputs = [one.name for one in self.session.get_inputs()]
        self.output = self.session.get_outputs()[0].name

    def execute(self, requests: list[object]) -> list[object]:
        parts = {
            name: [pb.get_input_tensor_by_name(one, name).as_numpy() for one in requests]
            for name in self.inputs
        }
        feeds = {name: np.concatenate(arrays) for name, arrays in parts.items()}
        (output,) = self.session.run([self.output], feeds)
        output = output.reshape(len(output), -1) if output.ndim == 1 else output
        rows = np.cumsum([len(one) for one in parts[self.inputs[0]]])[:-1]
        return [
            pb.InferenceResponse([pb.Tensor(self.output, part)]) for part in np.split(output, rows)
        ]
