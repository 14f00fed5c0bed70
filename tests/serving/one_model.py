"""The specs of the only model, "m", and its counts."""

from __future__ import annotations

import numpy as np

from cohort.metrics import Metrics
from cohort.tensors import Arrays, TensorSpec

X = TensorSpec("x", "FP32", (None, 2))
OUTPUTS = [
    TensorSpec("y", "FP32", (None, 2)),
    TensorSpec("maps", "seq(map(int64,tensor(float)))", None),
    TensorSpec("z", "INT64", (None,)),
]
ROW: Arrays = {"x": np.ones((1, 2), np.float32)}


def outcomes(metrics: Metrics, version: str = "1") -> dict[str, int]:
    """Return the number of requests of model "m" by code."""
    return {code: count for (_, code), count in metrics.version("m", version).outcomes.items()}
