"""CatBoost models: .cbm files and estimators. CatBoost exports ONNX without a converter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.frameworks import Exported, ExportRequest, Reference
from cohort_prepare.frameworks.callables import is_callable_reference, load_object
from cohort_prepare.frameworks.lightgbm_models import PICKLED
from cohort_prepare.frameworks.outputs import block_name, rename_inputs, rename_outputs, tree_sample


class CatboostModels:
    """Classifiers and regressors. CatBoost cannot export categorical features to ONNX."""

    def load(self, reference: Reference) -> Any:
        """Load from `module:callable`, a .cbm file, or a trusted pickle."""
        if is_callable_reference(reference.text) or reference.text.lower().endswith(PICKLED):
            return load_object(reference)
        import catboost

        model = catboost.CatBoost()
        try:
            model.load_model(reference.text)
        except catboost.CatBoostError as error:
            text = " ".join(str(error).split())[-300:]
            raise Misused(f"CatBoost cannot read {reference.text}: {text}") from error
        tells_classes = len(model.classes_) > 0
        kind = catboost.CatBoostClassifier if tells_classes else catboost.CatBoostRegressor
        whole = kind()
        whole.load_model(reference.text)
        return whole

    def export(self, model: Any, request: ExportRequest) -> Exported:
        """Export a label and probabilities, or a prediction. Maps become a tensor later."""
        import onnx

        kinds = {"categorical": "get_cat_feature_indices", "text": "get_text_feature_indices"}
        for kind, method in kinds.items():
            if places := list(getattr(model, method)()):
                raise Rejected(
                    f"the model has {len(places)} {kind} features, which CatBoost cannot export to "
                    "ONNX: train it on numbers, for example from an OrdinalEncoder or OneHotEncoder"
                )
        loss = str(model.get_all_params().get("loss_function", "")).partition(":")[0]
        if loss in {"Poisson", "Tweedie"}:
            raise Rejected(
                f"for the loss {loss}, CatBoost exports the logarithm of the prediction: train "
                "with RMSE, or take the exponent in the client"
            )
        features = len(model.feature_names_)
        name = block_name(request.example, features)
        model.save_model(
            request.out, format="onnx", export_parameters={"onnx_graph_name": "CatBoost"}
        )
        made = onnx.load(request.out)
        rename_inputs(made, {"features": name})
        rename_outputs(made, {"predictions": "prediction"})
        with open(request.out, "wb") as file:  # noqa: PTH123
            file.write(made.SerializeToString(deterministic=True))
        return Exported(
            f"CatBoost {type(model).__name__}",
            classes=_classes(model),
            sample=tree_sample(made, name, features, missing=False),
        )

    def run(self, model: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Run the model; outputs have the exported model's names."""
        (rows,) = inputs.values()
        if not hasattr(model, "predict_proba"):
            predicted = np.asarray(model.predict(rows))
            return {"prediction": predicted.reshape(len(predicted), -1)}
        labels = np.asarray(model.predict(rows)).reshape(-1)
        return {"label": labels, "probabilities": np.asarray(model.predict_proba(rows))}


def _classes(model: Any) -> dict[str, list[Any]]:
    if not hasattr(model, "predict_proba"):
        return {}
    return {"probabilities": np.asarray(model.classes_).tolist()}
