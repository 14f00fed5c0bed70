"""Texts that a run gives are counted before they are Python's, and made some at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from cohort.errors import CohortError, InferenceFailed, InvalidInput
from cohort.row_independence import OutputRows, RowKind, RowVerdict
from cohort.session import Opener, OrtRunControl, Provider, Session
from cohort.session.texts import SMALLEST_TEXT, TEXTS_AT_ONCE, bound_texts
from cohort.tensors import TensorSpec
from tests import onnx_models

MANY = 3 * TEXTS_AT_ONCE + 5


def opened(model: onnx.ModelProto, folder: Path, most: float = float("inf")) -> Session:
    path = onnx_models.save(model, folder / "1" / "model.onnx")
    return Opener(path, chain=(Provider("cpu"),), max_output_bytes=most).open()


@pytest.mark.parametrize("shape", [(0,), (1,), (MANY,), (5, MANY // 5), (2, 0, 3)])
def test_texts_are_what_the_runtime_has(shape: tuple[int, ...], tmp_path: Path) -> None:
    """This holds for any shape, and for any number of portions."""
    session = opened(onnx_models.texts_of(rank=len(shape)), tmp_path)
    (found,) = session.run({"n": np.array(shape)})
    assert found.shape == shape
    assert set(found.ravel()) <= {"7"}


def test_portions_keep_their_order(tmp_path: Path) -> None:
    """The texts are the numbers from 0 on."""
    numbers = np.arange(MANY)
    cast = onnx.helper.make_node("Cast", ["x"], ["y"], to=onnx.TensorProto.STRING)
    graph = onnx.helper.make_graph(
        [cast],
        "graph",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.INT64, ["N"])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.STRING, ["N"])],
    )
    opsets = [onnx.helper.make_opsetid("", 18)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9)
    (found,) = opened(model, tmp_path).run({"x": numbers})
    assert found.tolist() == list(map(str, numbers))


def repeated() -> onnx.ModelProto:
    """`x` BYTES [N], `times` INT64 [1] → `y` BYTES [M]: x again and again."""
    value = onnx.helper.make_tensor_value_info
    text, whole = onnx.TensorProto.STRING, onnx.TensorProto.INT64
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Tile", ["x", "times"], ["y"])],
        "graph",
        [value("x", text, ["N"]), value("times", whole, [1])],
        [value("y", text, ["M"])],
    )
    opsets = [onnx.helper.make_opsetid("", 18)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9)


@pytest.mark.parametrize("texts", [["a", "é" * 300, ""], []], ids=["some", "none"])
def test_models_that_take_texts_give_them_in_portions(texts: list[str], tmp_path: Path) -> None:
    """The texts equal the sent ones, up to the limit."""
    session = opened(repeated(), tmp_path, most=3 * MANY * 400)
    given = np.array(texts, np.object_)
    (found,) = session.run({"x": given, "times": np.array([MANY])})
    assert found.tolist() == texts * MANY
    if texts:
        with pytest.raises(InvalidInput, match="max_output_mb"):
            session.run({"x": given, "times": np.array([1 << 24])})


def test_bytes_that_are_no_text_reach_the_model(tmp_path: Path) -> None:
    """The runtime's answer cannot be made from them."""
    session = opened(repeated(), tmp_path)
    with pytest.raises(CohortError, match="not UTF-8"):
        session.run({"x": np.array([b"\xff\xfe"], "V2"), "times": np.array([1])})


def test_too_many_are_refused_by_their_number(tmp_path: Path) -> None:
    """They are refused before any is made; as many as fit are given."""
    session = opened(onnx_models.texts_of(), tmp_path, most=MANY * SMALLEST_TEXT)
    with pytest.raises(InvalidInput, match=r"more than .* MB \(max_output_mb\)"):
        session.run({"n": np.array([MANY + 1])})
    assert len(session.run({"n": np.array([MANY // 2])})[0]) == MANY // 2


def test_a_run_that_nobody_waits_for_makes_none(tmp_path: Path) -> None:
    """Its control is checked between portions, as between nodes."""
    session = opened(onnx_models.texts_of(), tmp_path)
    control = OrtRunControl()
    control.stop()
    with pytest.raises(InferenceFailed, match="stopped"):
        session.run({"n": np.array([MANY])}, control)


def test_rows_bound_what_is_proven_of_them() -> None:
    """Anything else may be any number."""
    labels = [TensorSpec("y", "BYTES", ("N", 2))]
    feeds = {"x": np.zeros((10, 4))}
    proven = RowVerdict(RowKind.PROVEN, outputs={"y": OutputRows(0, 3)})
    assert bound_texts(labels, proven)(feeds) == 10 * 2 * 3
    for rows in (None, OutputRows(1), OutputRows(0, None)):
        found = bound_texts(labels, RowVerdict(RowKind.PROVEN, outputs={"y": rows}))(feeds)
        assert found == float("inf")
    assert bound_texts(labels, RowVerdict(RowKind.UNKNOWN))(feeds) == float("inf")
