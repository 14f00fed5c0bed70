"""Models of scikit-learn and LightGBM, converted in this process and held against their source."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cohort.tensors import Arrays, by_name
from cohort_prepare.evaluating.cases import as_arrays
from cohort_prepare.evaluating.pairing import resolve_ties
from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.finishing import check_export, open_exported
from cohort_prepare.frameworks import FRAMEWORKS, ExportRequest, Reference, adapter_of
from cohort_prepare.frameworks.exact_trees import round_down
from cohort_prepare.verifying import Allowed
from cohort_prepare.verifying.output_mistakes import same_outputs

FP32 = Allowed("FP32", 1e-4)


def outputs(model: Any, path: Path, framework: str = "sklearn") -> tuple[Arrays, Arrays]:
    """Return the outputs of the source and of the ONNX model for the adapter's rows."""
    adapter = adapter_of(FRAMEWORKS[framework])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = adapter.export(model, ExportRequest(str(path)))
        rows = as_arrays(exported.sample)
        expected = as_arrays(adapter.run(model, rows))
    check_export(path)
    session = open_exported(path)
    got = by_name(session.outputs, session.run(rows))
    return resolve_ties(expected, got)[0], got


@pytest.mark.parametrize(
    "kind",
    [
        *("logistic regression", "support vectors", "linear support vectors", "gradient descent"),
        *("forest", "tree", "boosting classifier", "boosting regressor", "isolation forest"),
        *("vote", "ridge", "k-means", "scaler", "LightGBM classifier", "LightGBM regressor"),
    ],
)
def test_conversion_gives_what_the_estimator_gives(kind: str, tmp_path: Path) -> None:
    """It does also at the thresholds of trees, next to them, and with missing values."""
    from tests.cohort_prepare.estimators import ESTIMATORS

    model, data = ESTIMATORS[kind]
    expected, got = outputs(model.fit(*data), tmp_path / "model.onnx")
    assert expected
    assert same_outputs(expected, got, FP32)


def test_all_estimators_are_converted() -> None:
    """The names above are those of all there are."""
    from tests.cohort_prepare.estimators import ESTIMATORS

    (mark,) = vars(test_conversion_gives_what_the_estimator_gives)["pytestmark"]
    assert mark.args[1] == [*ESTIMATORS]


@pytest.mark.parametrize("objective", ["binary", "multiclass", "poisson"])
def test_lightgbm_text_file_gives_what_the_booster_gives(objective: str, tmp_path: Path) -> None:
    """Boosters read from their files, which know no names of classes."""
    from lightgbm import Booster, Dataset, train

    from tests.cohort_prepare.estimators import DIABETES, IRIS, TUMOURS

    data = {"binary": TUMOURS, "multiclass": IRIS, "poisson": DIABETES}[objective]
    options = {"objective": objective, "verbose": -1, "num_class": 3 if data is IRIS else 1}
    train(options, Dataset(*data), 5).save_model(tmp_path / "model.txt")
    booster = adapter_of(FRAMEWORKS["lightgbm"]).load(Reference(str(tmp_path / "model.txt")))
    expected, got = outputs(booster, tmp_path / "model.onnx", "lightgbm")
    assert isinstance(booster, Booster)
    assert same_outputs(expected, got, FP32)


def test_columns_by_name_are_an_input_each(tmp_path: Path) -> None:
    """A pipeline of a DataFrame takes its columns by their names, text as text."""
    import pandas as pd
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    random = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "age": random.integers(18, 80, 100),
            "city": random.choice(["Oslo", "Møre"], 100),
            "unused": random.normal(size=100),
        }
    )
    columns = ColumnTransformer(
        [("age", StandardScaler(), ["age"]), ("city", OneHotEncoder(), ["city"])]
    )
    model = make_pipeline(columns, LogisticRegression()).fit(table, table.age > 40)
    expected, got = outputs(model, tmp_path / "model.onnx")
    session = open_exported(tmp_path / "model.onnx")
    assert [(one.name, one.datatype) for one in session.inputs] == [
        ("age", "FP32"),
        ("city", "BYTES"),
    ]
    assert same_outputs(expected, got, FP32)


def test_thresholds_are_rounded_down() -> None:
    """A number of FP32 is at most the rounded threshold exactly where it is at most the given."""
    random = np.random.default_rng(0)
    exact = random.normal(size=500) * 10.0 ** random.integers(-20, 20, 500)
    rounded = np.asarray(round_down(exact.tolist()), np.float32)
    for near in (rounded, np.nextafter(rounded, np.float32(np.inf)), exact.astype(np.float32)):
        assert ((near.astype(np.float64) <= exact) == (near <= rounded)).all()


def pickled(folder: Path) -> str:
    import joblib
    from sklearn.linear_model import Ridge

    from tests.cohort_prepare.estimators import DIABETES

    joblib.dump(Ridge().fit(*DIABETES), folder / "model.txt")
    return str(folder / "model.txt")


@pytest.mark.parametrize("framework", ["sklearn", "lightgbm"])
def test_pickle_under_another_name_is_not_unpickled(framework: str, tmp_path: Path) -> None:
    """What is in a file decides, not how it is called."""
    with pytest.raises(Misused, match=r"--trust-pickle|not a LightGBM model"):
        adapter_of(FRAMEWORKS[framework]).load(Reference(pickled(tmp_path)))


def test_what_cannot_be_converted_is_told(tmp_path: Path) -> None:
    """An estimator that was not fitted, and one without a converter."""
    from sklearn.cluster import DBSCAN
    from sklearn.linear_model import Ridge

    from tests.cohort_prepare.estimators import IRIS

    with pytest.raises(Misused, match="is it fitted"):
        outputs(Ridge(), tmp_path / "model.onnx")
    with pytest.raises(Rejected, match="cannot convert DBSCAN"):
        outputs(DBSCAN().fit(IRIS[0]), tmp_path / "model.onnx")
