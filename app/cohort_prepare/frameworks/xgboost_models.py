"""XGBoost models, exported by onnxmltools: .json and .ubj files, Boosters or estimators."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.frameworks import Exported, ExportRequest, Reference
from cohort_prepare.frameworks.callables import is_callable_reference, load_object
from cohort_prepare.frameworks.lightgbm_models import PICKLED
from cohort_prepare.frameworks.outputs import (
    BOOSTER_OPSET,
    GRAPH,
    block_name,
    rename_outputs,
    tree_sample,
    write_boosters,
)
from cohort_prepare.frameworks.sklearn_models import classes_of

_CLASSIFYING = ("binary:", "multi:")
"""Prefixes of objectives for classification."""


class XgboostModels:
    """Boosters and estimators; models in a pipeline are converted as scikit-learn's."""

    def load(self, reference: Reference) -> Any:
        """Load from `module:callable`, a file of `save_model`, or a trusted pickle."""
        if is_callable_reference(reference.text) or reference.text.lower().endswith(PICKLED):
            return load_object(reference)
        import xgboost

        with open(reference.text, "rb") as file:  # noqa: PTH123 - two bytes of it
            begins = file.read(2)
        if not begins.startswith(b"{"):
            raise Misused(
                f"{reference.text} is not an XGBoost model in JSON or UBJSON: save it with "
                "save_model('model.ubj')"
            )
        booster = xgboost.Booster()
        try:
            booster.load_model(reference.text)
        except xgboost.core.XGBoostError as error:
            text = str(error).strip().splitlines()[0]
            raise Misused(f"XGBoost cannot read {reference.text}: {text}") from error
        return booster

    def export(self, model: Any, request: ExportRequest) -> Exported:
        """Export a label and probabilities, or a prediction."""
        from onnxmltools import convert_xgboost
        from onnxmltools.convert.common.data_types import FloatTensorType

        booster = _booster(model)
        _check_convertible(booster)
        features = booster.num_features()
        name = block_name(request.example, features)
        made = convert_xgboost(
            _convertible(model),
            name=GRAPH,
            initial_types=[(name, FloatTensorType([None, features]))],
            target_opset=BOOSTER_OPSET,
        )
        columns = booster.feature_names or []
        objective = _objective(booster)
        names = {"variable": "prediction", "output_label": "label"}
        rename_outputs(made, {**names, "output_probability": "probabilities"})
        write_boosters(made, request)
        return Exported(
            f"XGBoost {type(model).__name__} for {objective}",
            classes=_classes(model, booster),
            sample=tree_sample(made, name, features, missing=True),
            columns=columns,
        )

    def run(self, model: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Run the model; outputs have the exported model's names."""
        import xgboost

        (rows,) = inputs.values()
        booster = _convertible(_booster(model))
        predicted = booster.predict(xgboost.DMatrix(rows), **_best(model))
        if not _objective(booster).startswith(_CLASSIFYING):
            return {"prediction": predicted.reshape(len(predicted), -1)}
        if predicted.ndim == 1:
            predicted = np.column_stack([1 - predicted, predicted])
        labels = predicted.argmax(1)
        classes = getattr(model, "classes_", None)
        return {
            "label": labels if classes is None else np.asarray(classes)[labels],
            "probabilities": predicted,
        }


def _booster(model: Any) -> Any:
    return model.get_booster() if hasattr(model, "get_booster") else model


def _best(model: Any) -> dict[str, Any]:
    """Return the range of rounds of an estimator that stopped early."""
    best = getattr(model, "best_iteration", None) if hasattr(model, "get_booster") else None
    return {} if best is None else {"iteration_range": (0, best + 1)}


def _check_convertible(booster: Any) -> None:
    """Raise Rejected for models that onnxmltools 1.16 cannot convert, or converts wrongly."""
    learner = json.loads(booster.save_config())["learner"]
    if any(kind == "c" for kind in booster.feature_types or ()):
        raise Rejected(
            "the model has categorical splits, which XGBoost's converter does not support. Train "
            "it without enable_categorical after a OneHotEncoder or OrdinalEncoder in a pipeline. "
            "Or train LightGBM, whose categories are converted"
        )
    name = learner["gradient_booster"]["name"]
    if name != "gbtree":
        raise Rejected(f"XGBoost's booster {name!r} cannot be converted; use gbtree")
    targets = int(learner["learner_model_param"].get("num_target", 1))
    if targets > 1:
        raise Rejected(
            f"the model predicts {targets} targets, which XGBoost's converter does not support: "
            "train a model for each"
        )
    objective = _objective(booster)
    if objective in {"binary:logitraw", "binary:hinge"}:
        raise Rejected(
            f"XGBoost's objective {objective!r} cannot be converted; use binary:logistic"
        )


def _convertible(model: Any) -> Any:
    """Return an equivalent copy that the converter accepts.

    Feature names are removed, and labels alone are replaced by probabilities.
    """
    changed = copy.deepcopy(model)
    booster = _booster(changed)
    booster.feature_names = None
    booster.feature_types = None
    if _objective(booster) == "multi:softmax":
        booster.set_param({"objective": "multi:softprob"})
    return changed


def _objective(booster: Any) -> str:
    config = json.loads(booster.save_config())
    return str(config["learner"]["objective"]["name"])


def _classes(model: Any, booster: Any) -> dict[str, list[Any]]:
    if not _objective(booster).startswith(_CLASSIFYING):
        return {}
    if hasattr(model, "classes_"):
        return classes_of(model)
    config = json.loads(booster.save_config())
    count = int(config["learner"]["learner_model_param"]["num_class"])
    return {"probabilities": list(range(max(2, count)))}
