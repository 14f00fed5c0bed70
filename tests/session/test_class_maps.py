"""Classifiers whose exporters write a dictionary for each row answer with columns."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from cohort.errors import InferenceFailed, LoadFailed
from cohort.model_file.model import parse_model, read_model
from cohort.session import Provider, Session, SessionOptions, open_session
from cohort.session.class_maps import find_class_maps, with_columns
from cohort.session.signatures import read_signature
from cohort.tensors import Array, TensorSpec
from tests import onnx_models
from tests.examples import examples

ON_CPU = (Provider("cpu"),)
X = np.random.default_rng(1).normal(size=(5, 2)).astype(np.float32)


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    return onnx_models.save(model, folder / "1" / "model.onnx")


def columns_of(dictionaries: list[Mapping[object, float]], classes: tuple[object, ...]) -> Array:
    """Return ONNX Runtime's dictionaries for the unchanged model as columns."""
    return np.array([[row[one] for one in classes] for row in dictionaries], np.float32)


def dictionaries(model: onnx.ModelProto, x: Array, output: int = 1) -> list[Mapping[object, float]]:
    session = ort.InferenceSession(model.SerializeToString())
    found: list[Mapping[object, float]] = session.run(None, {session.get_inputs()[0].name: x})[
        output
    ]
    return found


@pytest.mark.parametrize("classes", [("cat", "dog", "eel"), (7, -3), ("ä", "b"), tuple(range(300))])
def test_scores_are_columns_in_the_order_of_the_classes(
    classes: tuple[int, ...] | tuple[str, ...], tmp_path: Path
) -> None:
    """They are the numbers of the dictionaries; the other outputs stay."""
    model = onnx_models.scores_by_class(classes)
    session = open_session(saved(model, tmp_path), chain=ON_CPU)
    assert session.outputs[1] == TensorSpec("scores", "FP32", ("N", len(classes)), classes)
    labels, scores = session.run({"x": X})
    expected = columns_of(dictionaries(model, X), classes)
    np.testing.assert_array_equal(scores, expected)
    assert labels.tolist() == [classes[row] for row in expected.argmax(1)]


def _lightgbm(rows: Array, labels: Array) -> tuple[Any, onnx.ModelProto]:
    from lightgbm import LGBMClassifier
    from onnxmltools import convert_lightgbm
    from onnxmltools.convert.common.data_types import FloatTensorType

    source = LGBMClassifier(n_estimators=5, verbose=-1).fit(rows, labels)
    inputs = [("x", FloatTensorType([None, 4]))]
    return source, convert_lightgbm(source, initial_types=inputs, target_opset=15)


@pytest.mark.parametrize("kind", ["logistic", "forest", "lightgbm"])
@pytest.mark.parametrize("labelled", ["names", "numbers", "two"])
def test_probabilities_are_those_of_the_source(kind: str, labelled: str, tmp_path: Path) -> None:
    """Models are exported by default, with the classes of scikit-learn and LightGBM."""
    from skl2onnx import to_onnx
    from sklearn.datasets import load_iris
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rows, labels = load_iris(return_X_y=True)
    rows = rows.astype(np.float32)
    if labelled == "names":
        labels = np.array(["setosa", "versicolor", "virginica"])[labels]
    elif labelled == "two":
        labels = labels > 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == "lightgbm":
            source, model = _lightgbm(rows, labels.astype(int) if labels.dtype == bool else labels)
        else:
            source = (
                make_pipeline(StandardScaler(), LogisticRegression())
                if kind == "logistic"
                else RandomForestClassifier(5, random_state=1)
            )
            source.fit(rows, labels)
            model = to_onnx(source, rows[:1])
        session = open_session(saved(model, tmp_path), chain=ON_CPU)
        found, probabilities = session.run({session.inputs[0].name: rows})
        expected: Any = source.predict_proba(rows)
        np.testing.assert_allclose(probabilities.astype(np.float32), expected, atol=1e-6)
        assert list(session.outputs[1].classes) == source.classes_.tolist()
        assert found.tolist() == np.asarray(source.predict(rows)).tolist()
    assert all(spec.rows_vary for spec in session.outputs), "onnxmltools declares one label"


def test_columns_that_are_not_the_classes_are_refused(tmp_path: Path) -> None:
    """The run fails, as the model's ZipMap would: no score is given to another class."""
    model = onnx_models.scores_by_class()
    model.graph.node[1].attribute[0].strings.append(b"fox")
    with pytest.raises(Exception, match=r"ZipMap|fox|size|number"):
        dictionaries(model, X)
    session = open_session(saved(model, tmp_path), chain=ON_CPU)
    with pytest.raises(InferenceFailed, match=r"has shape \[5, 3\], where the model names 4"):
        session.run({"x": X})


def test_the_file_alone_tells_the_same(tmp_path: Path) -> None:
    """What is known of a file that is not opened is what is served of it."""
    for labels in (None, 1):
        path = saved(onnx_models.scores_by_class(labels=labels), tmp_path)
        session, signature = open_session(path, chain=ON_CPU), read_signature(path)
        assert signature is not None
        told = [replace(one, shape=(None, *(one.shape or ())[1:])) for one in session.outputs]
        assert list(signature.outputs) == told, "a file has no symbol that is only inferred"


def test_other_models_are_opened_as_they_are(tmp_path: Path) -> None:
    """A ZipMap that no output shows, other sequences, and an output of one element."""
    inner = onnx_models.scores_by_class()
    del inner.graph.output[1]
    for number, model in enumerate([inner, onnx_models.sequence()]):
        path = saved(model, tmp_path / str(number))
        content = path.read_bytes()
        assert find_class_maps(parse_model(memoryview(content)).graphs.main.nodes, ["rows"]) == {}
    session = open_session(saved(onnx_models.identity("FP32", [1]), tmp_path), chain=ON_CPU)
    assert session.outputs[0].shape == (1,)


def test_the_runtimes_alias_of_onnx_is_its_domain(tmp_path: Path) -> None:
    """A model keeps the operator set that it imports by that name."""
    model = onnx_models.scores_by_class()
    model.opset_import.append(helper.make_opsetid("ai.onnx", 9))
    made = onnx.load_from_string(
        with_columns(saved(model, tmp_path), {"scores": ("cat", "dog", "eel")})
    )
    assert made.opset_import == model.opset_import


@pytest.mark.parametrize(
    ("classes", "fits"),
    [
        (("cat", "dog", "eel"), True),
        (("cat", "dog", "eel", "fox"), True),
        (("dog", "cat", "eel"), False),
        (("cat", "dog"), False),
        ((1, 2, 3), False),
    ],
)
def test_columns_of_other_classes_do_not_take_over(
    classes: tuple[int, ...] | tuple[str, ...], fits: bool, tmp_path: Path
) -> None:
    """Callers know the columns by their places; more classes behind them change nothing."""
    paths = [
        saved(onnx_models.scores_by_class(one), tmp_path / str(number))
        for number, one in enumerate([("cat", "dog", "eel"), classes])
    ]
    former, now = map(read_signature, paths)
    assert former is not None
    assert now is not None
    misfit = now.misfit(former, "version 1")
    assert (not misfit) == fits
    if classes == ("dog", "cat", "eel"):
        assert "'scores' has other classes" in misfit


def test_only_what_has_to_change_changes(tmp_path: Path) -> None:
    """The author's words, the weights and the other operators are there as before."""
    model = onnx_models.scores_by_class()
    model.doc_string, model.producer_name = "of pets", "me"
    model.metadata_props.add(key="owner", value="us")
    model.opset_import.append(helper.make_opsetid("", 17))
    path = saved(model, tmp_path)
    made = onnx.load_from_string(with_columns(path, {"scores": ("cat", "dog", "eel")}))
    onnx.checker.check_model(made, full_check=True)
    assert [node.op_type for node in made.graph.node] == ["LinearClassifier", "Identity"]
    assert made.graph.node[0] == model.graph.node[0]
    del made.graph.node[:], model.graph.node[:], made.graph.output[:], model.graph.output[:]
    assert made == model


def test_a_kept_optimized_graph_has_columns_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second start opens what the first one kept."""
    monkeypatch.setattr("cohort.session.optimized_graph.SLOW", 0.0)
    monkeypatch.setattr("cohort.session.optimized_graph.pays", lambda *_: True)
    path = saved(onnx_models.scores_by_class(), tmp_path)

    def opened() -> Session:
        return open_session(path, chain=ON_CPU, options=SessionOptions(), cache=tmp_path / "cache")

    first = opened().run({"x": X})
    (kept,) = (tmp_path / "cache" / "optimized").iterdir()
    before = kept.stat().st_mtime_ns
    second = opened()
    assert second.outputs[1].classes == ("cat", "dog", "eel")
    np.testing.assert_array_equal(second.run({"x": X})[1], first[1])
    assert kept.stat().st_mtime_ns == before


def test_weights_outside_the_file_are_found(tmp_path: Path) -> None:
    """A model that is opened from memory still has its folder."""
    model = onnx_models.scores_by_class()
    model.opset_import.append(helper.make_opsetid("", 17))
    model.graph.node.insert(0, helper.make_node("Mul", ["x", "factor"], ["more"]))
    model.graph.node[1].input[0] = "more"
    factor = onnx.numpy_helper.from_array(np.full((1, 2), 2, np.float32), "factor")
    model.graph.initializer.append(factor)
    expected = dictionaries(model, X)
    path = tmp_path / "1" / "model.onnx"
    path.parent.mkdir()
    onnx.save(model, path, save_as_external_data=True, location="model.onnx.data", size_threshold=0)
    assert (path.parent / "model.onnx.data").exists()
    scores = open_session(path, chain=ON_CPU).run({"x": X})[1]
    np.testing.assert_array_equal(scores, columns_of(expected, ("cat", "dog", "eel")))


@settings(max_examples=examples(200), deadline=None)
@given(data=st.data())
def test_damaged_files_are_no_models(data: st.DataObject) -> None:
    """With any changed bytes, there are class maps, no class maps, or a ValueError."""
    content = bytearray(CLASSIFIER)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with NamedTemporaryFile() as file, contextlib.suppress(ValueError, LoadFailed):
        file.write(content)
        file.flush()
        graphs = read_model(Path(file.name)).graphs
        if maps := find_class_maps(graphs.main.nodes, ["scores"]):
            assert with_columns(Path(file.name), maps)


CLASSIFIER = onnx_models.scores_by_class().SerializeToString()
