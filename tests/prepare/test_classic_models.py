"""Models of scikit-learn and LightGBM, converted in this process and held against their source."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
from lightgbm import Booster, Dataset, LGBMClassifier, LGBMRegressor, train
from sklearn.cluster import DBSCAN, KMeans
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    VotingClassifier,
)
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier

from app.comparing import Pair, explain
from app.prepare.cases import as_arrays
from app.prepare.converting import SAME_CONVERSION
from app.prepare.failures import Misused, Rejected
from app.prepare.finishing import check_export, open_exported, settle
from app.prepare.frameworks import FRAMEWORKS, ExportRequest, Reference, adapter_of
from app.prepare.frameworks.exact_trees import round_down
from app.tensors import Arrays, by_name

IRIS = load_iris(return_X_y=True)
FLOWERS = (IRIS[0], load_iris().target_names[IRIS[1]])
TUMOURS = load_breast_cancer(return_X_y=True)
DIABETES = load_diabetes(return_X_y=True)
PAIR = [("linear", LogisticRegression(max_iter=500)), ("bayes", GaussianNB())]


def outputs(model: Any, path: Path, framework: str = "sklearn") -> tuple[Arrays, Arrays]:
    """What the source gives for the rows that its adapter chose, and what the ONNX model does."""
    adapter = adapter_of(FRAMEWORKS[framework])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = adapter.export(model, ExportRequest(str(path)))
        rows = as_arrays(exported.sample)
        expected = as_arrays(adapter.run(model, rows))
    check_export(path)
    session = open_exported(path)
    got = by_name(session.outputs, session.run(rows))
    return settle(expected, got)[0], got


@pytest.mark.parametrize(
    ("model", "data"),
    [
        (LogisticRegression(max_iter=500), FLOWERS),
        (make_pipeline(StandardScaler(), SVC()), TUMOURS),
        (LinearSVC(random_state=0), TUMOURS),
        (SGDClassifier(random_state=0), TUMOURS),
        (RandomForestClassifier(10, random_state=0), TUMOURS),
        (DecisionTreeClassifier(random_state=0), TUMOURS),
        (HistGradientBoostingClassifier(max_iter=10, random_state=0), IRIS),
        (HistGradientBoostingRegressor(max_iter=10, random_state=0), DIABETES),
        (IsolationForest(n_estimators=10, random_state=0), IRIS),
        (VotingClassifier(PAIR, voting="soft"), IRIS),
        (Ridge(), DIABETES),
        (KMeans(3, random_state=0, n_init=1), IRIS),
        (StandardScaler(), IRIS),
        (make_pipeline(StandardScaler(), LGBMClassifier(n_estimators=5, verbose=-1)), FLOWERS),
        (LGBMRegressor(n_estimators=10, verbose=-1), DIABETES),
    ],
    ids=lambda one: type(one).__name__ if hasattr(one, "fit") else "",
)
def test_conversion_gives_what_the_estimator_gives(
    model: Any, data: tuple[Any, Any], tmp_path: Path
) -> None:
    """Also at the thresholds of trees, next to them, and where values are missing."""
    expected, got = outputs(model.fit(*data), tmp_path / "model.onnx")
    assert expected
    assert explain(Pair(expected, got), SAME_CONVERSION) == ""


@pytest.mark.parametrize(
    ("objective", "data"), [("binary", TUMOURS), ("multiclass", IRIS), ("poisson", DIABETES)]
)
def test_lightgbm_text_file_gives_what_the_booster_gives(
    objective: str, data: tuple[Any, Any], tmp_path: Path
) -> None:
    """Boosters read from their files, which know no names of classes."""
    options = {"objective": objective, "verbose": -1, "num_class": 3 if data is IRIS else 1}
    train(options, Dataset(*data), 5).save_model(tmp_path / "model.txt")
    booster = adapter_of(FRAMEWORKS["lightgbm"]).load(Reference(str(tmp_path / "model.txt")))
    expected, got = outputs(booster, tmp_path / "model.onnx", "lightgbm")
    assert isinstance(booster, Booster)
    assert explain(Pair(expected, got), SAME_CONVERSION) == ""


def test_columns_by_name_are_an_input_each(tmp_path: Path) -> None:
    """A pipeline of a DataFrame takes its columns by their names, text as text."""
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
    assert explain(Pair(expected, got), SAME_CONVERSION) == ""


def test_thresholds_are_rounded_down() -> None:
    """A number of FP32 is at most the rounded threshold exactly where it is at most the given."""
    random = np.random.default_rng(0)
    exact = random.normal(size=500) * 10.0 ** random.integers(-20, 20, 500)
    rounded = np.asarray(round_down(exact.tolist()), np.float32)
    for near in (rounded, np.nextafter(rounded, np.float32(np.inf)), exact.astype(np.float32)):
        assert ((near.astype(np.float64) <= exact) == (near <= rounded)).all()


def pickled(folder: Path) -> str:
    joblib.dump(Ridge().fit(*DIABETES), folder / "model.txt")
    return str(folder / "model.txt")


@pytest.mark.parametrize("framework", ["sklearn", "lightgbm"])
def test_pickle_under_another_name_is_not_unpickled(framework: str, tmp_path: Path) -> None:
    """What is in a file decides, not how it is called."""
    with pytest.raises(Misused, match=r"--trust-pickle|no model of LightGBM"):
        adapter_of(FRAMEWORKS[framework]).load(Reference(pickled(tmp_path)))


def test_what_cannot_be_converted_is_told(tmp_path: Path) -> None:
    """An estimator that was not fitted, and one without a converter."""
    with pytest.raises(Misused, match="is it fitted"):
        outputs(Ridge(), tmp_path / "model.onnx")
    with pytest.raises(Rejected, match="converts no DBSCAN"):
        outputs(DBSCAN().fit(IRIS[0]), tmp_path / "model.onnx")
