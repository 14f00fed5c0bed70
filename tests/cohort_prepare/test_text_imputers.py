"""Pipelines of scikit-learn that fill gaps in columns of text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from cohort.session.declared_inputs import COLUMNS_KEY, MISSING_KEY
from cohort_prepare.failures import Rejected
from cohort_prepare.finishing import check_export, open_exported, write_description
from cohort_prepare.frameworks import FRAMEWORKS, Exported, ExportRequest, adapter_of


def people() -> tuple[Any, Any]:
    """Some people, of whom age and city are not always known, and whether they came."""
    import pandas as pd

    random = np.random.default_rng(0)
    rows = 120
    frame = pd.DataFrame(
        {
            "age": random.normal(40, 10, rows),
            "city": random.choice(["Bern", "Ulm", "Köln"], rows).astype(object),
            "street": random.choice(["a", "b"], rows).astype(object),
        }
    )
    came = np.where((frame["age"] > 40) ^ (frame["city"] == "Ulm"), "yes", "no")
    for column in frame:
        frame.loc[random.random(rows) < 0.2, column] = np.nan
    return frame, came


def pipeline(*branches: Any) -> Any:
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    age = ("age", make_pipeline(SimpleImputer(), StandardScaler()), ["age"])
    return make_pipeline(ColumnTransformer([age, *branches]), LogisticRegression())


def text(strategy: str = "most_frequent", **options: Any) -> Any:
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    return make_pipeline(
        SimpleImputer(strategy=strategy, **options), OneHotEncoder(handle_unknown="ignore")
    )


def export(model: Any, path: Path) -> Exported:
    exported = adapter_of(FRAMEWORKS["sklearn"]).export(model, ExportRequest(str(path)))
    made = check_export(path)
    write_description(
        made, graph_name="m", classes={}, columns=exported.columns, missing=exported.missing
    )
    onnx.save(made, path)
    return exported


@pytest.mark.parametrize(
    ("options", "fills"),
    [
        ({}, None),
        ({"strategy": "constant", "fill_value": "?"}, {"city": "?", "street": "?"}),
    ],
)
def test_what_an_imputer_fills_in_is_told_to_the_server(
    options: Any, fills: Any, tmp_path: Path
) -> None:
    """Rows with gaps give what the pipeline gives, once these stand in the gaps."""
    frame, came = people()
    model = pipeline(("text", text(**options), ["city", "street"])).fit(frame, came)
    path = tmp_path / "model.onnx"
    found = export(model, path).missing
    assert found == (fills or {name: frame[name].mode()[0] for name in ("city", "street")})
    session = open_exported(path)
    assert {spec.name: spec.missing for spec in session.inputs} == {"age": None, **found}
    filled = frame.fillna(found)
    feeds = {
        name: filled[name].to_numpy("f4" if name == "age" else object).reshape(-1, 1)
        for name in frame
    }
    label, probabilities = session.run(feeds)
    assert label.tolist() == model.predict(frame).tolist()
    assert np.abs(probabilities - model.predict_proba(frame)).max() < 1e-5


def test_an_imputer_of_a_block_is_told_for_the_whole(tmp_path: Path) -> None:
    """One input has one value for its gaps."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    rows = np.array([["a", "b"], ["c", np.nan], ["a", "d"]], object)
    model = make_pipeline(text("constant", fill_value="?")[0], *text()[1:], LogisticRegression())
    found = export(model.fit(rows, [0, 1, 0]), tmp_path / "model.onnx")
    assert found.missing == {"input": "?"}


@pytest.mark.parametrize(
    ("branches", "says"),
    [
        (
            lambda: [("text", text(add_indicator=True), ["city"])],
            "step 'text' has a SimpleImputer of text with add_indicator",
        ),
        (
            lambda: [("text", text(), ["city"]), ("also", text()[1:], ["city"])],
            "column 'city' goes to several steps",
        ),
    ],
)
def test_what_cannot_be_told_is_refused_by_the_step(
    branches: Any, says: str, tmp_path: Path
) -> None:
    """The error states what to do about it."""
    model = pipeline(*branches()).fit(*people())
    with pytest.raises(Rejected, match=says):
        export(model, tmp_path / "model.onnx")


def test_an_imputer_behind_another_step_is_refused(tmp_path: Path) -> None:
    """Its gaps are not those of an input."""
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    through = ColumnTransformer([("through", "passthrough", ["city", "street"])])
    model = make_pipeline(through, *text(), LogisticRegression()).fit(*people())
    with pytest.raises(Rejected, match="'simpleimputer' is a SimpleImputer of text after other"):
        export(model, tmp_path / "model.onnx")


def test_the_names_of_columns_are_kept(tmp_path: Path) -> None:
    """They are kept if a model takes all columns as one input."""
    import pandas as pd
    from sklearn.linear_model import LinearRegression

    frame = pd.DataFrame({"b": [1.0, 2, 3], "a": [3.0, 1, 2]})
    path = tmp_path / "model.onnx"
    export(LinearRegression().fit(frame, [1.0, 2, 3]), path)
    properties = {one.key: one.value for one in onnx.load(path).metadata_props}
    assert json.loads(properties[COLUMNS_KEY]) == ["b", "a"]
    assert MISSING_KEY not in properties
    assert open_exported(path).inputs[0].columns == ("b", "a")
