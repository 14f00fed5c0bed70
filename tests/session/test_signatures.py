"""Signatures of models, and comparison of two from the view of existing callers."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.session import Signature, open_session, read_signature
from cohort.session.signatures import MAX_FIELDS, parse_signature
from cohort.tensors import DATATYPES, TensorSpec
from tests import onnx_models

X = TensorSpec("x", "FP32", ("N", 4))
Y = TensorSpec("y", "FP32", ("N", 3))
FORMER = Signature([X], [Y])

ALL_MODELS = [
    make
    for name, make in inspect.getmembers(onnx_models, inspect.isfunction)
    if name
    in {"mlp", "identity", "strings", "scalar", "unknown_rank", "two_inputs", "no_inputs"}
    | {"fixed_rows", "gather", "table", "loop", "reciprocal", "variable_length"}
]


def spec(
    name: str = "x", datatype: str = "FP32", shape: tuple[int | str | None, ...] | None = ("N", 4)
) -> TensorSpec:
    return TensorSpec(name, datatype, shape)


@pytest.mark.parametrize(
    ("now", "misfit"),
    [
        (FORMER, ""),
        (Signature([spec(shape=("rows", 4))], [Y]), ""),
        (Signature([spec(shape=(None, None))], [Y]), ""),
        (Signature([spec(shape=None)], [Y]), ""),
        (Signature([X], [TensorSpec("z", "INT64", None), Y]), ""),
        (Signature([spec("other")], [Y]), "it needs input 'other', unlike v1"),
        (Signature([X, spec("more")], [Y]), "it needs input 'more', unlike v1"),
        (Signature([], [Y]), "it has no input 'x', unlike v1"),
        (
            Signature([spec(datatype="INT64")], [Y]),
            "its input 'x' is INT64, unlike FP32 in v1",
        ),
        (
            Signature([spec(shape=("N", 5))], [Y]),
            "its input 'x' is [N, 5], unlike [N, 4] in v1",
        ),
        (
            Signature([spec(shape=(1, 4))], [Y]),
            "its input 'x' is [1, 4], unlike [N, 4] in v1",
        ),
        (Signature([spec(shape=(4,))], [Y]), "its input 'x' is [4], unlike [N, 4] in v1"),
        (Signature([X], []), "it has no output 'y', unlike v1"),
        (
            Signature([X], [TensorSpec("y", "INT64", None)]),
            "its output 'y' is INT64, unlike FP32 in v1",
        ),
    ],
)
def test_callers_can_stay_where_all_they_send_is_taken(now: Signature, misfit: str) -> None:
    """A signature that takes and gives no less fits; otherwise a difference is named."""
    assert now.misfit(FORMER, "v1").replace('"', "'") == misfit


@pytest.mark.parametrize("make", ALL_MODELS, ids=lambda make: make.__name__)
def test_a_file_says_what_an_open_session_says(make: object, tmp_path: Path) -> None:
    """Names, datatypes and shapes read from the file are those of the opened model."""
    path = onnx_models.save(make(), tmp_path / "m/1/model.onnx")  # type: ignore[operator]
    session = open_session(path)
    signature = read_signature(path)
    assert signature is not None
    assert list(signature.inputs) == list(session.inputs)
    assert list(signature.outputs) == list(session.outputs)


@pytest.mark.parametrize("datatype", [one.name for one in DATATYPES])
def test_every_datatype_has_its_name(datatype: str) -> None:
    """A datatype reads back under the name that callers know."""
    signature = parse_signature(memoryview(onnx_models.untouched(datatype).SerializeToString()))
    assert {one.datatype for one in signature.inputs} == {datatype}


def test_an_input_with_a_default_is_not_required(tmp_path: Path) -> None:
    """Old files list their weights among the inputs: requests do not contain them."""
    model = onnx_models.mlp()
    for weight in model.graph.initializer:
        model.graph.input.append(
            onnx.helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims)
        )
    path = onnx_models.save(model, tmp_path / "m/1/model.onnx")
    signature = read_signature(path)
    assert signature is not None
    assert [one.name for one in signature.inputs] == ["x"]


@given(st.binary(max_size=300))
def test_what_is_no_model_is_a_value_error(content: bytes) -> None:
    """Any bytes give a signature with outputs, or a ValueError."""
    try:
        signature = parse_signature(memoryview(content))
    except ValueError:
        return
    assert signature.outputs


def test_a_file_of_endless_fields_is_given_up() -> None:
    """More fields than any model has are not walked to their end."""
    with pytest.raises(ValueError, match="more than 200,000"):
        parse_signature(memoryview(b"\x08\x01" * (MAX_FIELDS + 1)))


def test_a_file_that_is_gone_is_an_os_error(tmp_path: Path) -> None:
    """An unreadable file is not mistaken for a model without a signature."""
    with pytest.raises(FileNotFoundError):
        read_signature(tmp_path / "model.onnx")


def test_other_labels_of_a_config_are_no_misfit() -> None:
    """They are the operator's names for the same columns: a typo may be fixed in place."""
    labelled = [
        Signature([X], [replace(Y, classes=classes, named=0)])
        for classes in (("cat", "dgo", "eel"), ("cat", "dog", "eel"))
    ]
    assert not labelled[1].misfit(labelled[0], "v1")
    of_the_file = Signature([X], [replace(Y, classes=(0, 1, 2))])
    assert not labelled[0].misfit(of_the_file, "v1")
    assert not of_the_file.misfit(labelled[0], "v1")
    other = Signature([X], [replace(Y, classes=(2, 1, 0))])
    assert "has other classes" in other.misfit(of_the_file, "v1")
