"""LightGBM models, exported by onnxmltools: text files, Boosters or scikit-learn estimators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.frameworks import Exported, ExportRequest, Reference
from cohort_prepare.frameworks.callables import is_callable_reference, load_object
from cohort_prepare.frameworks.exact_trees import exact_trees
from cohort_prepare.frameworks.outputs import (
    BOOSTER_OPSET,
    GRAPH,
    block_name,
    rename_outputs,
    tree_sample,
    write_boosters,
)
from cohort_prepare.frameworks.sklearn_models import SklearnModels


class LightgbmModels:
    """Boosters; estimators are converted as scikit-learn's."""

    def load(self, reference: Reference) -> Any:
        """Load from `module:callable`, a file of `save_model`, or a trusted pickle."""
        if is_callable_reference(reference.text) or reference.text.lower().endswith(PICKLED):
            return load_object(reference)
        import lightgbm

        if not Path(reference.text).read_bytes()[:5].startswith(b"tree\n"):
            raise Misused(
                f"{reference.text} is not a LightGBM model: save it with Booster.save_model"
            )
        try:
            return lightgbm.Booster(model_file=reference.text)
        except lightgbm.basic.LightGBMError as error:
            raise Misused(f"LightGBM cannot read {reference.text}: {error}") from error

    def export(self, model: Any, request: ExportRequest) -> Exported:
        """Export a label and probabilities, or a prediction."""
        if not _is_booster(model):
            made = SklearnModels().export(model, request)
            booster = getattr(model, "booster_", None)  # a pipeline has no booster_
            return made if booster is None else replace(made, **_of_columns(booster))
        from onnxmltools import convert_lightgbm
        from onnxmltools.convert.common.data_types import FloatTensorType

        features = model.num_feature()
        name = block_name(request.example, features)
        objective = _objective(model)
        if objective == "multiclassova":
            raise Rejected(
                "LightGBM's objective multiclassova cannot be converted with the same "
                "probabilities; use multiclass"
            )
        with exact_trees():
            made = convert_lightgbm(
                model,
                name=GRAPH,
                initial_types=[(name, FloatTensorType([None, features]))],
                target_opset=BOOSTER_OPSET,
                zipmap=False,
            )
        classes = _classes(model)
        names = {"variable": "prediction"} if not classes else {}
        rename_outputs(made, names)
        write_boosters(made, request)
        return Exported(
            f"LightGBM Booster for {objective}",
            classes={"probabilities": list(range(classes))} if classes else {},
            sample=tree_sample(made, name, features, missing=True),
            **_of_columns(model),
        )

    def run(self, model: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Run the model; outputs have the exported model's names."""
        if not _is_booster(model):
            return SklearnModels().run(model, inputs)
        (rows,) = inputs.values()
        predicted = np.asarray(model.predict(rows.astype(np.float64)))
        if not _classes(model):
            return {"prediction": predicted.reshape(len(predicted), -1)}
        if predicted.ndim == 1:
            predicted = np.column_stack([1 - predicted, predicted])
        return {"label": predicted.argmax(1), "probabilities": predicted}


PICKLED = (".pkl", ".pickle", ".joblib", ".cloudpickle", ".dill")


def _of_columns(booster: Any) -> dict[str, Any]:
    """Return a Booster's column names and categories, or a note if these are ambiguous.

    A Booster stores the categories of pandas columns in order, but not their columns. They are
    assigned if as many columns have categorical splits; ordered categories do not.
    """
    names = booster.feature_name()
    if names == [f"Column_{place}" for place in range(len(names))]:
        return {}
    known = booster.pandas_categorical or []
    infos = booster.dump_model(num_iteration=1)["feature_infos"]
    codes = {name: infos[name]["values"] for name in names if infos.get(name, {}).get("values")}
    if len(codes) == len(known) and all(
        max(values) < len(words) for values, words in zip(codes.values(), known, strict=True)
    ):
        return {"columns": names, "categories": dict(zip(codes, map(_plain, known), strict=True))}
    note = (
        f"it was trained on {len(known)} categorical columns, which are unknown: name them in "
        "config.yaml, for example inputs: {COLUMN: {categories: [red, green]}}"
    )
    return {"columns": names, "notes": [note] if known else []}


def _plain(categories: list[Any]) -> list[Any]:
    """Return categories as words, or as numbers if all are numbers."""
    if all(type(one) in {int, float} for one in categories):
        return categories
    return [str(one) for one in categories]


_CLASSIFYING = frozenset({"binary", "multiclass", "multiclassova"})


def _is_booster(model: Any) -> bool:
    return type(model).__name__ == "Booster"


def _objective(model: Any) -> str:
    return str(model.dump_model(num_iteration=1).get("objective", "")).partition(" ")[0]


def _classes(model: Any) -> int:
    """Return the number of classes of a Booster; 0 for regression."""
    dumped = model.dump_model(num_iteration=1)
    if _objective(model) not in _CLASSIFYING:
        return 0
    return max(2, int(dumped["num_class"]))
