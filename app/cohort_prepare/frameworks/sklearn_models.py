"""scikit-learn estimators and pipelines, exported by skl2onnx; XGBoost and LightGBM included."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.frameworks import Exported, ExportRequest, Reference
from cohort_prepare.frameworks.callables import load_object
from cohort_prepare.frameworks.exact_trees import exact_trees
from cohort_prepare.frameworks.outputs import around, keep_second_score, rename_outputs, thresholds
from cohort_prepare.frameworks.tables import SAMPLE_ROWS, Features, features_of
from cohort_prepare.frameworks.text_imputers import check_filled, without_text_imputers

OPSET = 21
"""Standard opset, tested with skl2onnx and ONNX Runtime."""

ML_OPSET = 3
"""Opset of ai.onnx.ml; the converters of trees write no later one."""


class SklearnModels:
    """Estimators and pipelines: classifiers, regressors, clusterers, transformers, detectors."""

    def load(self, reference: Reference) -> Any:
        """Load a fitted estimator from `module:callable`, .skops, or a trusted pickle."""
        if reference.text.lower().endswith(".skops"):
            return _load_skops(reference)
        return load_object(reference)

    def export(self, model: Any, request: ExportRequest) -> Exported:
        """Export tensors: a classifier's label and probabilities, a regressor's prediction, etc."""
        from skl2onnx import to_onnx
        from skl2onnx.common.exceptions import MissingConverter, MissingShapeCalculator

        _register()
        _check_categories(model)
        table = features_of(model, request.example)
        filled, missing = without_text_imputers(model, table)
        convertible = _convertible(filled)
        convert = partial(
            to_onnx,
            convertible,
            initial_types=_types(table),
            target_opset={"": request.opset or OPSET, "ai.onnx.ml": ML_OPSET},
        )
        try:
            with exact_trees():
                try:
                    made = convert(options={id(convertible): {"zipmap": False}})
                except NameError:  # raised by skl2onnx for an unknown option
                    made = convert()
        except NotImplementedError as error:
            raise Rejected(
                f"skl2onnx cannot convert this {type(model).__name__}: {_one_line(error)}. Remove "
                "that step, and do it in the client"
            ) from error
        except (MissingConverter, MissingShapeCalculator) as error:
            kind = re.search(r"<class '([\w.]+)'>", str(error))
            raise Rejected(
                f"skl2onnx cannot convert {kind[1].rpartition('.')[2] if kind else 'this'}: "
                "use another estimator, or run it in the client"
            ) from error
        produced = [one.name for one in made.graph.output]
        rename_outputs(made, dict(zip(produced, output_names(model, produced), strict=False)))
        if is_decision(model):
            keep_second_score(made)
        Path(request.out).write_bytes(made.SerializeToString(deterministic=True))
        sample = _sample(model, table, made)
        if missing and not table.block:
            check_filled(lambda rows: run_estimator(model, rows), table.rows(sample), missing)
        return Exported(
            _words(model),
            classes=classes_of(model),
            sample=sample,
            columns=_column_names(model, table),
            missing=missing,
        )

    def run(self, model: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Run the model; outputs have the exported model's names."""
        return run_estimator(model, features_of(model, inputs).rows(inputs))


def _check_categories(model: Any) -> None:
    """Raise Rejected for trees with categorical splits, which skl2onnx writes as numbers."""
    for inner in [one for _, one in getattr(model, "steps", ())]:
        _check_categories(inner)
    if hasattr(model, "best_estimator_"):
        _check_categories(model.best_estimator_)
    categorical = getattr(model, "is_categorical_", None)
    if categorical is not None and np.any(categorical):
        raise Rejected(
            f"the {type(model).__name__} has categorical splits, which skl2onnx cannot write. "
            "Train it with categorical_features=None after a OneHotEncoder or OrdinalEncoder in a "
            "pipeline, which accepts words. Or train LightGBM, whose categories are converted"
        )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")


def _column_names(model: Any, table: Features) -> list[str]:
    """Return the column names of an input that has all columns; [] if unknown."""
    names = getattr(model, "feature_names_in_", ()) if table.block else ()
    return [str(name) for name in names] if len(names) == len(table.columns) else []


def run_estimator(model: Any, rows: Any) -> dict[str, Any]:
    """Run an estimator on rows; return outputs by the names of `output_names`."""
    if is_classifier(model):
        names = output_names(model, ("", ""))
        scores = getattr(model, "predict_proba", None) or model.decision_function
        return {names[0]: _labels(model.predict(rows)), names[1]: _columns(scores(rows))}
    if _is_kind(model, "outlier_detector"):
        return {
            "label": np.asarray(model.predict(rows)).reshape(-1, 1),
            "scores": np.asarray(model.decision_function(rows)).reshape(-1, 1),
        }
    if _is_kind(model, "clusterer") and hasattr(model, "transform"):
        return {"label": np.asarray(model.predict(rows)), "scores": model.transform(rows)}
    if not hasattr(model, "predict"):
        made = model.transform(rows)
        return {"transformed": made.toarray() if hasattr(made, "toarray") else np.asarray(made)}
    predicted = np.asarray(model.predict(rows))
    return {"prediction": predicted.reshape(len(predicted), -1)}


def _labels(labels: Any) -> Any:
    """Convert labels to the datatypes of ONNX classifiers: text and INT64."""
    found = np.asarray(labels)
    return found.astype(np.int64) if found.dtype.kind in "bf" else found


def _columns(scores: Any) -> Any:
    """Give scores a second dimension; of two classes, keep only the second's."""
    found = np.asarray(scores)
    return found.reshape(-1, 1) if found.ndim == 1 else found


def output_names(model: Any, produced: Any) -> list[str]:
    """Return the output names, in the converter's order."""
    if is_classifier(model):
        return ["label", "probabilities" if hasattr(model, "predict_proba") else "scores"]
    if _is_kind(model, "clusterer") or _is_kind(model, "outlier_detector"):
        return ["label", "scores"]
    if len(produced) == 1:
        return ["prediction" if hasattr(model, "predict") else "transformed"]
    return list(produced)


def is_classifier(model: Any) -> bool:
    """Return True if the model is a classifier."""
    return _is_kind(model, "classifier")


def is_decision(model: Any) -> bool:
    """Return True if the model decides between two classes by one score, above 0 for the second."""
    classes: Any = getattr(model, "classes_", ())
    return is_classifier(model) and not hasattr(model, "predict_proba") and len(classes) == 2


def _is_kind(model: Any, kind: str) -> bool:
    """Compare the type in scikit-learn 1.6's tags, or in the attribute of earlier versions."""
    if hasattr(model, "__sklearn_tags__"):
        try:
            return bool(model.__sklearn_tags__().estimator_type == kind)
        except AttributeError:
            pass
    return getattr(model, "_estimator_type", None) == kind


def classes_of(model: Any) -> dict[str, list[Any]]:
    """Return the classes of the columns of a classifier's scores."""
    classes: Any = getattr(model, "classes_", None)
    one_list = isinstance(classes, np.ndarray) and classes.ndim == 1
    if not is_classifier(model) or not one_list or is_decision(model):
        return {}
    values = [one.item() if isinstance(one, np.generic) else one for one in classes]
    if any(isinstance(one, bool) or not isinstance(one, int) for one in values):
        values = [str(one) for one in values]
    return {output_names(model, ("", ""))[1]: values}


def _convertible(model: Any) -> Any:
    """Return the model with options that its converter supports; predictions do not change."""
    last = model.steps[-1][1] if hasattr(model, "steps") else model
    if not getattr(last, "flatten_transform", False):
        return model
    changed = copy.deepcopy(model)
    (changed.steps[-1][1] if hasattr(changed, "steps") else changed).flatten_transform = False
    return changed


def _types(table: Features) -> list[Any]:
    from skl2onnx.common.data_types import FloatTensorType, Int64TensorType, StringTensorType

    kinds = {"float": FloatTensorType, "int": Int64TensorType, "text": StringTensorType}
    if not table.block:
        return [(one.name, kinds[one.kind]([None, 1])) for one in table.columns]
    block = {one.kind for one in table.columns}
    if len(block) > 1:
        raise Misused(
            f"the model has one block of columns of several types ({', '.join(sorted(block))}), "
            "which no tensor can hold: start it with a ColumnTransformer"
        )
    return [(table.block, kinds[block.pop()]([None, len(table.columns)]))]


def _sample(model: Any, table: Features, made: Any) -> dict[str, Any]:
    """Make rows that reveal differences: at thresholds of trees, or from the training data."""
    missing = takes_missing(model)
    if table.block and all(one.kind == "float" for one in table.columns):
        found = thresholds(made, len(table.columns))
        if any(one.size for one in found):
            return {table.block: around(found, SAMPLE_ROWS * 4, missing=missing)}
    return table.sample(missing=missing)


def takes_missing(model: Any) -> bool:
    """Return True if the model's tags declare that it accepts NaN."""
    try:
        return bool(model.__sklearn_tags__().input_tags.allow_nan)
    except AttributeError:
        return False


def _words(model: Any) -> str:
    if hasattr(model, "steps"):
        steps = [type(step).__name__ for _, step in model.steps if not isinstance(step, str)]
        return f"{type(model).__name__} of {' and '.join(steps)}"
    return type(model).__name__


def _register() -> None:
    """Register the models of other libraries with skl2onnx, if these are installed."""
    from skl2onnx import update_registered_converter
    from skl2onnx.common.shape_calculator import (
        calculate_linear_classifier_output_shapes,
        calculate_linear_regressor_output_shapes,
    )

    if not find_spec("onnxmltools"):
        return
    shapes = {
        "Classifier": calculate_linear_classifier_output_shapes,
        "Regressor": calculate_linear_regressor_output_shapes,
    }
    wanted: list[tuple[Any, str, Any]] = []
    if find_spec("lightgbm"):
        import lightgbm
        from onnxmltools.convert.lightgbm.operator_converters.LightGbm import convert_lightgbm

        wanted += [(lightgbm.LGBMClassifier, "Classifier", convert_lightgbm)]
        wanted += [(lightgbm.LGBMRegressor, "Regressor", convert_lightgbm)]
    if find_spec("xgboost"):
        import xgboost
        from onnxmltools.convert.xgboost.operator_converters.XGBoost import convert_xgboost

        wanted += [(xgboost.XGBClassifier, "Classifier", convert_xgboost)]
        wanted += [(xgboost.XGBRegressor, "Regressor", convert_xgboost)]
    for kind, what, converter in wanted:
        options: dict[str, Any] = {"split": None} if "lightgbm" in kind.__module__ else {}
        if what == "Classifier":
            options |= {"nocl": [True, False], "zipmap": [True, False, "columns"]}
        update_registered_converter(
            kind, f"Cohort{kind.__name__}", shapes[what], converter, options=options or None
        )


def _load_skops(reference: Reference) -> Any:
    from skops.io import get_untrusted_types, load

    unknown = get_untrusted_types(file=reference.text)
    if unknown and not reference.trust_pickle:
        raise Misused(
            f"{reference.text} has types that are not known to be safe: "
            f"{', '.join(unknown[:5])}; add --trust-pickle if you made it"
        )
    return load(reference.text, trusted=unknown)
