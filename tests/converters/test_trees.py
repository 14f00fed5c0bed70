"""Models of trees and of scikit-learn; what is not here is fetched by the command itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cohort_prepare.frameworks import FRAMEWORKS
from tests.converters.record import record

pytestmark = pytest.mark.skipif(
    os.environ.get("CONVERTERS") != "all", reason="frameworks are fetched; make converters runs it"
)

ROOT = Path(__file__).parents[2]

TRAINING = """
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

iris, diabetes = load_iris(), load_diabetes(return_X_y=True)
flowers = iris.target_names[iris.target]
quiet = {"iterations": 10, "verbose": False, "random_seed": 0, "allow_writing_files": False}

def forest():
    from sklearn.ensemble import RandomForestClassifier
    return RandomForestClassifier(10, random_state=0).fit(iris.data, flowers)

def lightgbm_classifier():
    from lightgbm import LGBMClassifier
    return LGBMClassifier(n_estimators=10, verbose=-1).fit(iris.data, flowers)

def xgboost_classifier():
    from xgboost import XGBClassifier
    return XGBClassifier(n_estimators=10).fit(*load_breast_cancer(return_X_y=True))

def xgboost_in_a_pipeline():
    from xgboost import XGBRegressor
    return make_pipeline(StandardScaler(), XGBRegressor(n_estimators=10)).fit(*diabetes)

def xgboost_booster():
    from xgboost import DMatrix, train
    options = {"objective": "multi:softmax", "num_class": 3}
    return train(options, DMatrix(iris.data, iris.target), 10)

def catboost_classifier():
    from catboost import CatBoostClassifier
    return CatBoostClassifier(**quiet).fit(iris.data, flowers)

def catboost_regressor():
    from catboost import CatBoostRegressor
    return CatBoostRegressor(**quiet).fit(*diabetes)

def catboost_of_categories():
    from catboost import CatBoostClassifier
    rows = [[letter, number] for letter in "abc" for number in range(10)]
    return CatBoostClassifier(cat_features=[0], **quiet).fit(rows, [0, 1] * 15)

if __name__ == "__main__":
    xgboost_booster().save_model("model.ubj")
    xgboost_booster().save_model("model.json")
    catboost_classifier().save_model("model.cbm")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A module of the user's, and the native files of two frameworks."""
    made = tmp_path_factory.mktemp("trees")
    (made / "training.py").write_text(TRAINING)
    needs = {*FRAMEWORKS["xgboost"].requirements, *FRAMEWORKS["catboost"].requirements}
    wanted = [part for one in sorted(needs) for part in ("--with", one)]
    subprocess.run(
        ["uv", "run", "--no-project", *wanted, "python", "training.py"], cwd=made, check=True
    )
    return made


def convert(folder: Path, source: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    ended = subprocess.run(
        [sys.executable, "-m", "cohort", "convert", source, "--json", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        check=False,
    )
    return ended.returncode, json.loads(ended.stdout)


@pytest.mark.parametrize(
    ("source", "framework", "classes"),
    [
        ("training:forest", "sklearn", ["setosa", "versicolor", "virginica"]),
        ("training:lightgbm_classifier", "lightgbm", ["setosa", "versicolor", "virginica"]),
        ("training:xgboost_classifier", "xgboost", [0, 1]),
        ("training:xgboost_in_a_pipeline", "sklearn", None),
        ("model.ubj", "xgboost", [0, 1, 2]),
        ("model.json", "xgboost", [0, 1, 2]),
        ("training:catboost_classifier", "catboost", ["setosa", "versicolor", "virginica"]),
        ("training:catboost_regressor", "catboost", None),
        ("model.cbm", "catboost", ["setosa", "versicolor", "virginica"]),
    ],
)
def test_framework_is_found_and_fetched(
    source: str, framework: str, classes: list[object] | None, folder: Path
) -> None:
    """The converted model has its source's outputs, also at the trees' thresholds."""
    code, found = convert(folder, source, "--out", "model.onnx")
    assert code == 0, found
    assert found["framework"] == framework
    assert found["classes"] == ({"probabilities": classes} if classes else {})
    assert found["difference"]["max_relative"] < 1e-3
    record(found, source=source)


def test_categories_of_catboost_are_refused(folder: Path) -> None:
    """CatBoost does not write them to ONNX; the error states what to do."""
    code, found = convert(folder, "training:catboost_of_categories", "--out", "none.onnx")
    assert code == 1
    assert "1 categorical features" in found["error"]
    assert not (folder / "none.onnx").exists()
