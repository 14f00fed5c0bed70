"""Recipes applied by ONNX Runtime's tools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from cohort.profiling import find_trial, influence
from cohort.session import open_session
from cohort.tensors import Arrays, by_name
from cohort_prepare.failures import Misused
from cohort_prepare.quantizing import QuantizeOptions, quantize_model
from cohort_prepare.quantizing.building import build, find_quantizable, name_nodes, pre_process
from cohort_prepare.quantizing.quality import QualityTotals
from cohort_prepare.quantizing.ranges import find_ranges
from cohort_prepare.quantizing.recipes import (
    DynamicRecipe,
    Float16Recipe,
    Int4Recipe,
    Recipe,
    StaticRecipe,
    excluding,
)
from tests import onnx_models

STATIC = StaticRecipe("minmax", "uint8", reduce_range=True, convolutional=False)
RECIPES: tuple[Recipe, ...] = (
    DynamicRecipe("int8", reduce_range=True),
    STATIC,
    Float16Recipe(),
    Int4Recipe(),
)
ROWS = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)


def silent(_: str) -> None:
    pass


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model of three layers, prepared, with the ranges of its activations."""
    model = onnx_models.mlp(features=64, hidden=64, classes=4, layers=2)
    onnx.helper.set_model_props(model, {"owner": "somebody"})
    model.producer_name = "theirs"
    onnx_models.save(model, tmp_path / "original.onnx")
    pre_process(tmp_path / "original.onnx", tmp_path / "prepared.onnx")
    ranges(tmp_path, "minmax")
    return tmp_path


def ranges(folder: Path, *methods: str, scale: float = 1.0) -> None:
    def batches() -> Iterator[Arrays]:
        return iter([{"x": ROWS[:63]}, {"x": ROWS[63:] * scale}])

    find_ranges(
        folder / "prepared.onnx",
        batches,
        methods,  # type: ignore[arg-type]
        folder,
        external=False,
        on_progress=silent,
    )


def apply(recipe: Recipe, folder: Path, name: str = "out") -> Path:
    out = folder / name / "model.onnx"
    out.parent.mkdir()
    build(recipe, folder / "prepared.onnx", folder / "original.onnx", folder, out)
    return out


def operators(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.family)
def test_a_recipe_keeps_all_but_the_weights(folder: Path, recipe: Recipe) -> None:
    """Names, open dimensions and metadata are the original's; outputs are close."""
    out = apply(recipe, folder)
    before, after = onnx.load(folder / "original.onnx"), onnx.load(out)
    onnx.checker.check_model(str(folder / "original.onnx"), full_check=True)
    assert list(after.graph.input) == list(before.graph.input)
    assert list(after.graph.output) == list(before.graph.output)
    assert list(after.metadata_props) == list(before.metadata_props)
    assert (after.producer_name, after.graph.name) == (before.producer_name, before.graph.name)
    assert out.stat().st_size < 0.7 * (folder / "original.onnx").stat().st_size
    totals = QualityTotals(open_session(out).outputs)
    one, other = (open_session(path) for path in (folder / "original.onnx", out))
    totals.add(*(by_name(each.outputs, each.run({"x": ROWS})) for each in (one, other)))
    assert totals.quality().cosine > 0.98


def test_the_same_recipe_gives_the_same_bytes(folder: Path) -> None:
    """Each recipe is applied twice."""
    for recipe in RECIPES:
        first, second = (
            apply(recipe, folder, f"{recipe.family}{number}").read_bytes() for number in (1, 2)
        )
        assert first == second


def test_rows_of_the_dynamic_recipe_influence_each_other(folder: Path) -> None:
    """An outlier in a batch sets the scale of all; with static scales it does not."""
    said = {}
    for recipe in (RECIPES[0], STATIC):
        session = open_session(apply(recipe, folder, recipe.family))
        trial = find_trial(session.run, session.inputs)
        said[recipe.family] = influence(session.run, trial.requests(8), session.outputs)
    assert "rows influence each other" in said["dynamic"]
    assert said["static"] == ""


def test_excluded_nodes_stay_as_they_are(folder: Path) -> None:
    """One of three Gemms keeps its weights in FP32."""
    (first, *_) = find_quantizable(onnx.load(folder / "prepared.onnx")).quantizable
    for recipe in (RECIPES[0], STATIC, Int4Recipe()):
        whole = operators(apply(recipe, folder, f"{recipe.family}-all"))
        part = operators(apply(excluding(recipe, [first]), folder, f"{recipe.family}-part"))
        for quantized in ("MatMulInteger", "MatMulNBits"):
            assert part[quantized] == max(0, whole[quantized] - 1)
        assert part["DequantizeLinear"] <= whole["DequantizeLinear"]
        assert part != whole


def test_outliers_are_cut_off_by_entropy_and_percentile(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A last row ten times as large widens the range less than by minimum and maximum."""
    from onnxruntime.quantization.calibrate import load_tensors_data

    monkeypatch.setattr("cohort_prepare.quantizing.ranges.BINS", 512)
    monkeypatch.setattr("cohort_prepare.quantizing.ranges.PERCENTILE", 98.0)
    ranges(folder, "entropy", "percentile", scale=10.0)
    high = {
        method: float(np.max(load_tensors_data(folder / f"{method}.json")["x"].highest))
        for method in ("minmax", "entropy", "percentile")
    }
    assert high["minmax"] == ROWS[63:].max() * 10
    assert high["entropy"] < 0.9 * high["minmax"]
    assert high["percentile"] < 0.9 * high["minmax"]


def test_rows_without_a_range_are_said(folder: Path) -> None:
    """A row with NaN is reported with its number."""
    broken = ROWS.copy()
    broken[5, 3] = np.nan
    with pytest.raises(Misused, match="row 5 of input 'x' has NaN"):
        find_ranges(
            folder / "prepared.onnx",
            lambda: iter([{"x": broken}]),
            ["minmax"],
            folder,
            external=False,
            on_progress=silent,
        )


def test_weights_beside_the_model_are_quantized_too(tmp_path: Path) -> None:
    """External data is read, and the result is one file."""
    model = onnx_models.mlp(features=64, hidden=64)
    path = onnx_models.save_with_external_data(model, tmp_path / "original.onnx")
    pre_process(path, tmp_path / "prepared.onnx")
    out = apply(Int4Recipe(), tmp_path)
    assert operators(out)["MatMulNBits"] == 2
    assert [one.name for one in out.parent.iterdir()] == ["model.onnx"]


def test_every_node_gets_a_name_of_its_own() -> None:
    """Nodes are excluded by their names."""
    model = onnx_models.mlp(layers=3)
    model.graph.node[0].name = "Relu_1"
    assert name_nodes(model)
    names = [node.name for node in model.graph.node]
    assert all(names)
    assert len(set(names)) == len(names)
    assert not name_nodes(model)


def test_biases_of_one_row_are_quantized(tmp_path: Path) -> None:
    """scikit-learn's MLP has MatMul and Add with a bias of [1, N], which is fused to a Gemm."""
    from skl2onnx import to_onnx
    from sklearn.datasets import load_iris
    from sklearn.neural_network import MLPClassifier

    x, y = load_iris(return_X_y=True)
    x = x.astype(np.float32)
    model = MLPClassifier((16,), max_iter=2000, random_state=0).fit(x, y)
    made = to_onnx(model, x[:1], options={"zipmap": False}, target_opset=17)
    onnx_models.save(made, tmp_path / "original.onnx")
    pre_process(tmp_path / "original.onnx", tmp_path / "prepared.onnx")
    find_ranges(
        tmp_path / "prepared.onnx",
        lambda: iter([{"X": x}]),
        ["minmax"],
        tmp_path,
        external=False,
        on_progress=silent,
    )
    outputs = open_session(apply(STATIC, tmp_path)).run({"X": x})
    assert np.mean(outputs[0] == model.predict(x)) > 0.95


def test_products_behind_operators_of_classic_models_are_quantized(tmp_path: Path) -> None:
    """ONNX infers no datatype behind a Scaler, and the tools quantize nothing without one."""
    from skl2onnx import to_onnx
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    data = np.random.default_rng(0)
    rows, labels = data.standard_normal((200, 16)).astype(np.float32), np.arange(200) % 3
    model = make_pipeline(StandardScaler(), MLPClassifier((32,), max_iter=5, random_state=0))
    with pytest.warns(ConvergenceWarning):
        model.fit(rows, labels)
    made = to_onnx(model, rows[:1], options={"zipmap": False}, target_opset=21)
    path = onnx_models.save(made, tmp_path / "model.onnx")
    np.savez(tmp_path / "rows.npz", X=rows)
    options = QuantizeOptions(recipe="auto", calibration=tmp_path / "rows.npz", search_seconds=0)
    found = quantize_model(path, tmp_path / "out.onnx", options, on_progress=silent)
    assert [one.failure for one in found.candidates] == [""] * 4
