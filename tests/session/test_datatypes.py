"""The datatypes numpy lacks, and those of fewer than eight bits, from the table to the runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from cohort.comparing import ROUNDING, Pair, explain
from cohort.errors import InvalidInput
from cohort.profiling import synthetic_inputs
from cohort.session import Provider, Session, open_session
from cohort.tensors import BY_NAME, DATATYPES, EXTENSION, Array, TensorSpec, pack, unpack
from tests import onnx_models

Opener = Callable[[onnx.ModelProto], Session]

EXTENSIONS = [datatype.name for datatype in EXTENSION]
PACKED = [datatype.name for datatype in EXTENSION if datatype.packed]
# ONNX Runtime's Cast on the CPU takes them; the others only pass through.
CAST = [name for name in EXTENSIONS if name != "FP4E2M1"]


@pytest.fixture
def opened(tmp_path: Path) -> Opener:
    """A function that saves a model and opens it on the CPU."""

    def save_and_open(model: onnx.ModelProto) -> Session:
        path = onnx_models.save(model, tmp_path / "1" / "model.onnx")
        return open_session(path, chain=[Provider("cpu")])

    return save_and_open


def _values(datatype: str, shape: tuple[int, ...]) -> Array:
    """Values that differ, each exact in `datatype`: 0, 1 and a negative one where it has them."""
    known = BY_NAME[datatype]
    cycle = np.array([1, 2, 1, 2, 2], "f4")
    if datatype == "FP8E8M0":  # powers of two, without 0
        cycle = np.array([1, 2, 0.5, 4, 2], "f4")
    elif not datatype.startswith("UINT"):
        cycle = np.array([0, 1, -2, 1, -1], "f4")
    if known.packed and datatype.startswith("U"):
        cycle = np.array([0, 1, 3, 2, 1], "f4")
    return np.resize(cycle, shape).astype(known.dtype)


def _same(one: Array, other: Array) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and bool((one == other).all())


@pytest.mark.parametrize("datatype", DATATYPES, ids=lambda datatype: datatype.name)
def test_table_is_onnxs(datatype: object) -> None:
    """Each row's number, numpy dtype and bits are those the onnx package has."""
    row = BY_NAME[datatype.name]  # type: ignore[attr-defined]
    assert row.onnx == onnx_models.ELEMENT_TYPES[row.name]
    assert row.dtype == helper.tensor_dtype_to_np_dtype(row.onnx)
    if row.kind != "text":
        tensor = numpy_helper.from_array(np.ones(8).astype(row.dtype))
        assert len(tensor.raw_data) == row.bits == row.size(8)


def test_nothing_of_onnx_is_missing_but_complex_numbers() -> None:
    """Every element type of ONNX has a row, save those for which ONNX Runtime has no tensors."""
    ours = {datatype.onnx for datatype in DATATYPES}
    left = {name for name, number in TensorProto.DataType.items() if number not in ours}
    assert left == {"UNDEFINED", "COMPLEX64", "COMPLEX128"}


@pytest.mark.parametrize("datatype", PACKED)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3,), (4,), (2, 3), (3, 5), (2, 0, 3)])
def test_packing_is_onnxs(datatype: str, shape: tuple[int, ...]) -> None:
    """Packed bytes are what a TensorProto holds, and unpacked they are the array again."""
    array = _values(datatype, shape)
    together = pack(array, BY_NAME[datatype].bits)
    assert together.tobytes() == numpy_helper.from_array(array).raw_data
    assert len(together) == BY_NAME[datatype].size(array.size)
    assert _same(unpack(together, BY_NAME[datatype], shape), array)


def test_packing_reads_rows_in_order() -> None:
    """A transposed array is packed in reading order, not in memory order."""
    array = _values("INT4", (2, 3))
    transposed = np.asfortranarray(array)
    assert pack(transposed, 4).tobytes() == pack(array, 4).tobytes()


@pytest.mark.parametrize("datatype", EXTENSIONS)
@pytest.mark.parametrize("shape", [(2, 3), (1, 1), (0, 3), (3, 5)])
def test_extension_datatypes_cross(opened: Opener, datatype: str, shape: tuple[int, ...]) -> None:
    """Values of every extension datatype go in and come out unchanged, odd lengths included."""
    session = opened(onnx_models.untouched(datatype, ["N", None]))
    assert session.inputs[0].datatype == datatype
    array = _values(datatype, shape)
    (answer,) = session.run({"x": array})
    assert _same(answer, array)


@pytest.mark.parametrize("datatype", EXTENSIONS)
def test_scalars_cross(opened: Opener, datatype: str) -> None:
    """A scalar stays one."""
    array = _values(datatype, ())
    (answer,) = opened(onnx_models.untouched(datatype, [])).run({"x": array})
    assert _same(answer, array)


@pytest.mark.parametrize("datatype", CAST)
def test_runtime_sees_the_values_sent(opened: Opener, datatype: str) -> None:
    """The runtime, casting to FP32, finds the numbers that were meant."""
    array = _values(datatype, (3, 5))
    (answer,) = opened(onnx_models.cast(datatype, "FP32", ["N", 5])).run({"x": array})
    assert answer.tolist() == array.astype(np.float32).tolist()


@pytest.mark.parametrize("datatype", CAST)
def test_runtimes_values_are_read(opened: Opener, datatype: str) -> None:
    """Values that the runtime casts from FP32 are read as those numbers."""
    array = _values(datatype, (3, 5))
    session = opened(onnx_models.cast("FP32", datatype, ["N", 5]))
    (answer,) = session.run({"x": array.astype(np.float32)})
    assert _same(answer, array)


def _beside(model: onnx.ModelProto, datatype: str, *, shape: list[str]) -> onnx.ModelProto:
    """`model` with another input `z` of `datatype`, and an output `same` of its values."""
    kind = onnx_models.ELEMENT_TYPES[datatype]
    model.graph.input.append(helper.make_tensor_value_info("z", kind, shape))
    model.graph.node.append(helper.make_node("Identity", ["z"], ["same"]))
    model.graph.output.append(helper.make_tensor_value_info("same", kind, shape))
    return model


def test_scalar_beside_a_boxed_tensor(opened: Opener) -> None:
    """A scalar that goes along in an OrtValue stays a scalar."""
    session = opened(_beside(onnx_models.untouched("BF16"), "FP32", shape=[]))
    x = np.ones((1, 3), ml_dtypes.bfloat16)
    same, number = session.run({"x": x, "z": np.array(2, "f4")})
    assert _same(same, x)
    assert (number.shape, float(number)) == ((), 2)


def test_text_beside_a_boxed_input(opened: Opener) -> None:
    """A model may take text together with BF16, as long as its outputs are numpy's."""
    session = opened(_beside(onnx_models.cast("BF16", "FP32"), "BYTES", shape=["M"]))
    x = np.ones((1, 3), ml_dtypes.bfloat16)
    number, text = session.run({"x": x, "z": np.array(["a", "é"], np.object_)})
    assert number.tolist() == [[1, 1, 1]]
    assert text.tolist() == ["a", "é"]


def test_text_into_a_model_that_gives_boxed_tensors(opened: Opener) -> None:
    """ONNX Runtime's Python has no way to feed text to a model that gives BF16; here is one."""
    session = opened(_beside(onnx_models.untouched("BF16"), "BYTES", shape=["M"]))
    x = np.ones((1, 3), ml_dtypes.bfloat16)
    z = np.array(["a"], np.object_)
    outputs = session.run({"x": x, "z": z})
    assert [output.tolist() for output in outputs] == [x.tolist(), z.tolist()]


def test_boxed_arrays_outlive_the_run(opened: Opener) -> None:
    """A copy made for a boxed run, here of a transposed array, is kept until the run has ended."""
    model = _beside(onnx_models.untouched("BF16", ["N", "M"]), "FP32", shape=["N", "M"])
    values = np.arange(12, dtype="f4").reshape(3, 4).T
    session = opened(model)
    for _ in range(50):
        outputs = session.run({"x": values.astype(ml_dtypes.bfloat16), "z": values})
        assert [output.tolist() for output in outputs] == [values.tolist()] * 2


def test_input_that_is_an_output_is_copied(opened: Opener) -> None:
    """What a model gives back untouched does not lie in the caller's memory."""
    model = onnx_models.untouched("BF16")
    same = helper.make_tensor_value_info("z", TensorProto.FLOAT, ["N", 3])
    model.graph.input.append(same)
    model.graph.output.append(same)
    z = np.ones((2, 3), "f4")
    _, answer = opened(model).run({"x": np.ones((1, 3), ml_dtypes.bfloat16), "z": z})
    z[:] = 2
    assert answer.tolist() == [[1, 1, 1]] * 2


@pytest.mark.parametrize("datatype", ["BF16", *EXTENSIONS])
def test_another_datatype_is_refused(opened: Opener, datatype: str) -> None:
    """Numbers of another datatype are refused, not reinterpreted."""
    session = opened(onnx_models.untouched(datatype))
    with pytest.raises(InvalidInput, match=datatype):
        session.run({"x": np.ones((1, 3), np.uint8)})


@pytest.mark.parametrize("rank", [8, 64])
@pytest.mark.parametrize("datatype", ["FP32", "BF16", "INT4", "BYTES"])
def test_ranks_up_to_numpys(opened: Opener, datatype: str, rank: int) -> None:
    """Arrays may have as many dimensions as numpy allows; the runtime takes more."""
    array = np.ones([1] * rank).astype(BY_NAME[datatype].dtype)
    (answer,) = opened(onnx_models.untouched(datatype, [None] * rank)).run({"x": array})
    assert answer.shape == array.shape


@pytest.mark.parametrize("datatype", [datatype.name for datatype in DATATYPES])
def test_rows_are_put_together(datatype: str) -> None:
    """Batching's concatenation and cutting keep every datatype and value."""
    array = synthetic_inputs([TensorSpec("x", datatype, ("N", 5))], 4, 16)["x"]
    whole = np.concatenate([array[:1], array[1:4]])
    assert _same(whole[1:], array[1:]) or np.isnan(array.astype("f4")).any()
    assert whole.dtype == BY_NAME[datatype].dtype


@pytest.mark.parametrize("datatype", EXTENSIONS)
def test_answers_of_extension_datatypes_can_be_compared(datatype: str) -> None:
    """Outputs that differ are distinguished."""
    array = _values(datatype, (2, 5))
    assert not explain(Pair({"y": array}, {"y": array.copy()}), ROUNDING)
    assert explain(Pair({"y": array}, {"y": array[:, ::-1].copy()}), ROUNDING)
