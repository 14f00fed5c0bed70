"""Models that were trained on categories of pandas, converted and asked in words."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from cohort import Runtime
from cohort.errors import InvalidInput
from cohort_prepare.failures import Rejected
from cohort_prepare.frameworks import FRAMEWORKS, ExportRequest, adapter_of
from tests.cohort_prepare.commands import run_in

TRAINING = """
import numpy as np
import pandas as pd
from lightgbm import LGBMClassifier
from sklearn.ensemble import HistGradientBoostingClassifier

random = np.random.default_rng(0)
people = pd.DataFrame(
    {
        "age": random.normal(40, 12, 600).round(),
        "city": pd.Categorical(random.choice(["Zug", "Basel", "Ulm"], 600)),
        "size": pd.Categorical(random.choice([3, 5, 7], 600)),
    }
)
came = ((people["age"] > 40) ^ (people["city"] == "Ulm") ^ (people["size"] == 5)).astype(int)
people.loc[::9, "age"] = np.nan
people.loc[::11, "city"] = None
classifier = LGBMClassifier(n_estimators=10, verbose=-1)

def estimator():
    return classifier.fit(people, came)

def booster():
    return estimator().booster_

def ordered():
    rows = people.assign(size=people["size"].cat.as_ordered())
    return classifier.fit(rows, came)

def histogram():
    words = people.assign(size=people["size"].astype(str).astype("category"))
    return HistGradientBoostingClassifier(categorical_features="from_dtype").fit(words, came)
"""


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, which the command imports from the folder, imported here too."""
    (tmp_path / "training.py").write_text(TRAINING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "training", raising=False)
    return __import__("training")


def converted(folder: Path, what: str) -> str:
    done = run_in(folder, "convert", f"training:{what}", "--out", "models/people/1/model.onnx")
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


@pytest.mark.parametrize("what", ["estimator", "booster"])
async def test_words_give_what_they_give_in_pandas(
    what: str, training: Any, tmp_path: Path
) -> None:
    """This holds for columns of words, of numbers and with gaps; an unknown word is refused."""
    said = converted(tmp_path, what)
    assert "callers send 'Basel', 'Ulm', 'Zug' for city" in said
    rows = training.people[:200]
    expected = training.estimator().predict_proba(rows)
    city = np.array([one if isinstance(one, str) else "" for one in rows["city"]], np.object_)
    inputs: Any = {
        "age": rows["age"].to_numpy(np.float32),
        "city": city,
        "size": rows["size"].astype(float).to_numpy(),
    }
    async with Runtime(models=tmp_path / "models", state=tmp_path / "state") as runtime:
        answer: Any = await runtime.infer("people", inputs)
        np.testing.assert_allclose(answer["probabilities"], expected, atol=1e-6)
        unknown = {name: values[:1] for name, values in inputs.items()}
        unknown["city"] = np.array(["Bern"], np.object_)
        with pytest.raises(InvalidInput, match="input 'city' row 0: 'Bern' is not one of its 3"):
            await runtime.infer("people", unknown)


@pytest.mark.usefixtures("training")
def test_columns_that_cannot_be_told_are_left_to_the_config(tmp_path: Path) -> None:
    """LightGBM keeps categories without the names of their columns, of which one is ordered."""
    assert "inputs: {COLUMN: {categories:" in converted(tmp_path, "ordered")
    model = onnx.load(tmp_path / "models/people/1/model.onnx")
    properties = {one.key: one.value for one in model.metadata_props}
    assert "cohort.categories" not in properties
    assert json.loads(properties["feature_names"]) == ["age", "city", "size"]


def test_categories_that_have_no_converter_are_refused(training: Any, tmp_path: Path) -> None:
    """The error states what to do, since their converter writes wrong numbers."""
    request = ExportRequest(str(tmp_path / "model.onnx"))
    with pytest.raises(Rejected, match="after a OneHotEncoder or OrdinalEncoder"):
        adapter_of(FRAMEWORKS["sklearn"]).export(training.histogram(), request)
