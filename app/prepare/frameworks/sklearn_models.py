"""scikit-learn's estimators and pipelines, by skl2onnx."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from app.prepare.frameworks import Exported, ExportRequest, Reference
from app.prepare.frameworks.callables import load_object

INPUT = "input"


class SklearnModels:
    """Estimators and pipelines."""

    def load(self, reference: Reference) -> Any:
        """A fitted estimator, by `module:callable`, or from a pickle that is trusted."""
        return load_object(reference)

    def export(self, model: Any, request: ExportRequest) -> Exported:
        """One input of all features; a classifier's labels and its probabilities as a tensor."""
        from skl2onnx import to_onnx
        from skl2onnx.common.data_types import FloatTensorType

        columns = int(model.n_features_in_)
        options = {"zipmap": False} if hasattr(model, "predict_proba") else None
        made = to_onnx(
            model,
            initial_types=[(INPUT, FloatTensorType([None, columns]))],
            target_opset=request.opset,
            options=options,
        )
        Path(request.out).write_bytes(made.SerializeToString(deterministic=True))
        classes = {"probabilities": model.classes_.tolist()} if options else {}
        return Exported(type(model).__name__, classes=classes)

    def run(self, model: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """As the exported model names its outputs."""
        rows = inputs[INPUT]
        if hasattr(model, "predict_proba"):
            return {"label": model.predict(rows), "probabilities": model.predict_proba(rows)}
        return {"variable": np.asarray(model.predict(rows)).reshape(len(rows), -1)}
