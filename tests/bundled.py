"""The held-out rows of the bundled models, cut again by the recipe each model carries.

scikit-learn takes 1.5 s of CPU to import: who needs no rows does not wait for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

MODELS = Path(__file__).parent.parent / "models"

Split = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]


def iris_test_split() -> Split:
    """Features FP32 [38, 4] as `iris` takes them, and their labels INT64 [38]."""
    from sklearn.datasets import load_iris

    data = load_iris()
    return held_out("iris", data.data, data.target)


def digits_test_split() -> Split:
    """Images FP32 [450, 1, 8, 8] in 0..1 as `digits` takes them, and their labels INT64 [450]."""
    from sklearn.datasets import load_digits

    data = load_digits()
    return held_out("digits", data.images[:, np.newaxis] / 16, data.target)


def held_out(name: str, features: npt.NDArray[Any], labels: npt.NDArray[Any]) -> Split:
    """Cut off the rows that version 1 of model `name` never saw."""
    from sklearn.model_selection import train_test_split

    recipe = metadata(name, 1)
    _, test_features, _, test_labels = train_test_split(
        features.astype(np.float32),
        labels.astype(np.int64),
        test_size=float(recipe["test_size"]),
        random_state=int(recipe["split_seed"]),
        stratify=labels,
    )
    return test_features, test_labels


def metadata(name: str, version: int) -> dict[str, str]:
    """Read the metadata in the file of a bundled model."""
    model = onnx.load(model_path(name, version))
    return {entry.key: entry.value for entry in model.metadata_props}


def model_path(name: str, version: int) -> Path:
    """Return the path of a bundled model."""
    return MODELS / name / str(version) / "model.onnx"
