"""Opening a model and running it, on the CPU."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from cohort.errors import CohortError, InferenceFailed, InvalidInput, LoadFailed, RunRefused
from cohort.model_file.model import parse_model
from cohort.session import (
    Metadata,
    ModelRules,
    Provider,
    Session,
    SessionOptions,
    give_back_memory,
    open_session,
    optimized_graph,
)
from cohort.session.failures import run_failure, sentence
from cohort.session.rules import EXTENSIONS
from cohort.session.running import LEFT_OUT
from cohort.tensors import BY_NAME, STANDARD, Array, TensorSpec
from tests import onnx_models
from tests.waiting import PATIENCE

ON_CPU = (Provider("cpu"),)
Opener = Callable[[onnx.ModelProto], Session]


@pytest.fixture
def opened(tmp_path: Path) -> Opener:
    """A function that saves a model and opens it on the CPU."""

    def save_and_open(model: onnx.ModelProto) -> Session:
        return open_session(onnx_models.save(model, tmp_path / "1" / "model.onnx"), chain=ON_CPU)

    return save_and_open


# ---- specs and metadata


def test_specs_name_datatypes_and_shapes(opened: Opener) -> None:
    """Inputs and outputs come in the model's order, with Open Inference datatypes and symbols."""
    session = opened(onnx_models.two_inputs())
    assert session.inputs == (
        TensorSpec("a", "FP32", ("N", 2)),
        TensorSpec("b", "FP32", ("N", 2)),
    )
    assert [spec.name for spec in session.outputs] == ["sum", "difference"]


def test_unnamed_dimension_is_none(opened: Opener) -> None:
    """A dimension with neither length nor symbol is None."""
    assert opened(onnx_models.identity("FP32", [None, 3])).inputs[0].shape == (None, 3)


def test_scalar_is_told_from_unknown_rank(opened: Opener) -> None:
    """ONNX Runtime gives both as []; in the file a scalar is (), an unknown rank None."""
    assert opened(onnx_models.scalar()).inputs[0].shape == ()
    unknown = opened(onnx_models.unknown_rank())
    assert unknown.inputs[0].shape is None
    assert unknown.outputs[0].shape is None


def test_sequence_keeps_the_runtimes_words(opened: Opener) -> None:
    """An output that is not a tensor has ONNX Runtime's type for a datatype, and no shape."""
    session = opened(onnx_models.sequence())
    assert session.outputs == (TensorSpec("rows", "seq(tensor(float))", None),)
    assert not session.outputs[0].transportable
    assert session.run({"x": np.ones((2, 3), "f4")}) == [LEFT_OUT]


def test_tensors_come_without_the_sequences_beside_them(opened: Opener) -> None:
    """An output that is not a tensor is not fetched; the others keep their places."""
    rows, y = opened(onnx_models.sequence_and_tensor()).run({"x": np.ones((2, 3), "f4")})
    assert rows is LEFT_OUT
    assert y.tolist() == [[1, 1, 1]] * 2


def test_metadata_is_what_the_file_says(opened: Opener) -> None:
    """Opset, IR, producer, description and properties come from the file."""
    session = opened(onnx_models.describe(onnx_models.mlp(), {"classes": "a,b"}))
    assert session.metadata == Metadata(
        ir_version=10,
        opsets={"": 21},
        producer="cohort-tests",
        producer_version="1.2.3",
        description="What it is.",
        domain="org.example",
        graph_name="graph",
        properties={"classes": "a,b"},
    )


texts = st.text(max_size=20)
shapes = st.none() | st.lists(
    st.none() | st.integers(0, 2**40) | st.text("NLab_", min_size=1), max_size=5
)


@given(
    st.builds(
        onnx.ModelProto,
        ir_version=st.integers(0, 2**63 - 1),
        producer_name=texts,
        producer_version=texts,
        domain=texts,
        doc_string=texts,
        model_version=st.integers(-(2**63), 2**63 - 1),
        opset_import=st.lists(
            st.builds(helper.make_opsetid, texts, st.integers(-(2**31), 2**31 - 1)),
            max_size=3,
            unique_by=lambda opset: opset.domain,
        ),
    ),
    st.dictionaries(texts, texts, max_size=3),
    st.dictionaries(texts, shapes, max_size=4),
    st.sets(texts.filter(bool), max_size=2),
)
def test_reader_agrees_with_onnx(
    model: onnx.ModelProto,
    properties: dict[str, str],
    inputs: dict[str, onnx_models.Shape],
    external: set[str],
) -> None:
    """The reader finds in any model what the onnx package wrote there."""
    helper.set_model_props(model, properties)
    model.graph.name = "g"
    for name, shape in inputs.items():
        model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    for location in external:
        weight = model.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[1])
        weight.external_data.add(key="location", value=location)
        weight.external_data.add(key="offset", value="0")
    read = parse_model(memoryview(model.SerializeToString()))
    assert read.metadata == Metadata(
        ir_version=model.ir_version,
        opsets={opset.domain: opset.version for opset in model.opset_import},
        producer=model.producer_name,
        producer_version=model.producer_version,
        description=model.doc_string,
        domain=model.domain,
        graph_name="g",
        properties=properties,
    )
    assert read.shapes == {
        name: None if shape is None else tuple(shape) for name, shape in inputs.items()
    }
    assert read.external == external


def test_reader_finds_external_data_in_subgraphs(tmp_path: Path) -> None:
    """Weights outside the file are also found in branches and in constants."""
    tensor = TensorProto(name="t", data_type=TensorProto.FLOAT, dims=[1])
    tensor.external_data.add(key="location", value="inner.bin")
    constant = helper.make_node("Constant", [], ["y"], value=tensor)
    branch = helper.make_graph([constant], "branch", [], [])
    node = helper.make_node("If", ["c"], ["z"], then_branch=branch, else_branch=branch)
    model = helper.make_model(helper.make_graph([node], "g", [], []))
    assert parse_model(memoryview(model.SerializeToString())).external == {"inner.bin"}


# ---- running


def test_outputs_come_in_the_models_order(opened: Opener) -> None:
    """`run` answers every output, in the order of `outputs`."""
    total, difference = opened(onnx_models.two_inputs()).run(
        {"b": np.full((2, 2), 1, "f4"), "a": np.full((2, 2), 5, "f4")}
    )
    assert total.tolist() == [[6, 6], [6, 6]]
    assert difference.tolist() == [[4, 4], [4, 4]]


def _sample(datatype: str) -> Array:
    if datatype == "BYTES":
        return np.array([["a", "", "é"]], np.object_)
    dtype = BY_NAME[datatype].dtype
    return np.array([[0, 1, 1]]).astype(dtype)


@pytest.mark.parametrize("datatype", [datatype.name for datatype in STANDARD])
def test_every_standard_datatype_crosses(opened: Opener, datatype: str) -> None:
    """Every Open Inference datatype goes in and comes out unchanged, BF16 included."""
    array = _sample(datatype)
    session = opened(onnx_models.identity(datatype, ["N", 3]))
    assert session.inputs[0].datatype == datatype
    (answer,) = session.run({"x": array})
    assert answer.dtype == array.dtype
    assert answer.tolist() == array.tolist()


def test_bf16_beside_other_datatypes(opened: Opener) -> None:
    """A model that takes FP32 and gives BF16 works, and one without rows gives none."""
    cast = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.BFLOAT16)
    model = onnx_models.identity()
    model.graph.node[0].CopyFrom(cast)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.BFLOAT16
    session = opened(model)
    assert session.run({"x": np.full((2, 3), 1.5, "f4")})[0].tolist() == [[1.5] * 3] * 2
    empty = session.run({"x": np.zeros((0, 3), "f4")})[0]
    assert (empty.shape, empty.dtype) == ((0, 3), np.dtype(ml_dtypes.bfloat16))


def test_strings(opened: Opener) -> None:
    """Text goes in and out as objects, next to numbers."""
    same, code = opened(onnx_models.strings()).run(
        {"text": np.array([["cat"], ["cow"]], np.object_)}
    )
    assert same.tolist() == [["cat"], ["cow"]]
    assert code.tolist() == [[1], [-1]]


def test_model_without_inputs(opened: Opener) -> None:
    """A model that takes nothing runs."""
    session = opened(onnx_models.no_inputs())
    assert session.inputs == ()
    assert session.run({})[0].tolist() == [1, 2, 3]


def test_non_contiguous_arrays_keep_their_values(opened: Opener) -> None:
    """A transposed or strided array is read by its values, not by its memory."""
    session = opened(onnx_models.identity("FP32", ["N", 3]))
    array = np.arange(18, dtype="f4").reshape(3, 6).T[::2]
    assert session.run({"x": array})[0].tolist() == array.tolist()


def test_foreign_byte_order_is_refused(opened: Opener) -> None:
    """A big-endian array would be read as other numbers: it is refused."""
    session = opened(onnx_models.identity("FP32", ["N", 3]))
    with pytest.raises(InvalidInput, match="byte order"):
        session.run({"x": np.ones((1, 3), ">f4" if sys.byteorder == "little" else "<f4")})


def test_variable_length_ignores_padding(opened: Opener) -> None:
    """The text model's padded row equals the same row alone: other tests build on that."""
    session = opened(onnx_models.variable_length())
    alone = session.run({"input_ids": np.array([[7, 9]])})[0]
    padded = session.run({"input_ids": np.array([[7, 9, 0, 0], [1, 2, 3, 4]])})[0]
    assert padded[0].tolist() == pytest.approx(alone[0].tolist(), rel=1e-6)


def test_outlier_changes_dynamically_quantized_neighbours(opened: Opener) -> None:
    """In the quantized model one outlier row changes the others: other tests build on that."""
    session = opened(onnx_models.dynamically_quantized())
    rows = np.random.default_rng(0).standard_normal((4, 8)).astype("f4")
    alone = session.run({"x": rows[:3]})[0]
    rows[3] *= 1000
    assert not np.allclose(session.run({"x": rows})[0][:3], alone, atol=0.1)


# ---- failing runs


def test_index_out_of_bounds_is_the_callers(opened: Opener) -> None:
    """ONNX Runtime's InvalidArgument is a RunRefused, with the part that helps and no more."""
    with pytest.raises(RunRefused) as raised:
        opened(onnx_models.gather()).run({"index": np.array([1, 9])})
    assert str(raised.value) == (
        "indices element out of data bounds, idx=9 must be within the inclusive range [-3,2]"
    )


def test_missing_and_unknown_inputs_are_named(opened: Opener) -> None:
    """A missing or unknown input is refused by name."""
    session = opened(onnx_models.two_inputs())
    one = np.ones((1, 2), "f4")
    with pytest.raises(InvalidInput, match="'b' is missing"):
        session.run({"a": one})
    with pytest.raises(InvalidInput, match="c"):
        session.run({"a": one, "c": one})


def test_sizes_that_do_not_fit_are_the_callers(opened: Opener) -> None:
    """What an operator refuses is, whichever error ONNX Runtime has for it: C++ goes."""
    with pytest.raises(RunRefused) as raised:
        opened(onnx_models.two_inputs()).run(
            {"a": np.ones((2, 2), "f4"), "b": np.ones((3, 2), "f4")}
        )
    assert "2 by 3" in str(raised.value)
    assert "onnxruntime" not in str(raised.value)


@pytest.mark.parametrize(
    ("operator", "second", "outputs"),
    [
        ("GatherElements", [[7, 0]], 1),
        ("TopK", [9], 2),
        ("TopK", [-1], 2),
        ("Reshape", [3, 7], 1),
        ("Expand", [2**62, 2**62], 1),
        ("Div", [[0, 0]], 1),
        ("Mod", [[0, 0]], 1),
        ("Unsqueeze", [9], 1),
        ("ReduceSum", [9], 1),
        ("Slice", [0], 1),
    ],
)
def test_values_that_an_operator_refuses_are_the_callers(
    opened: Opener, operator: str, second: list[int], outputs: int
) -> None:
    """The error contains no C++ for any error of ONNX Runtime."""
    whole = np.asarray(second, np.int64)
    inputs = [("x", (None, None)), ("second", (None,) * whole.ndim)]
    more = ["end", "axes", "step"] if operator == "Slice" else []
    constants = {"end": [2], "axes": [9], "step": [0]}
    names = ["y", "z"][:outputs]
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", "second", *more], names)],
        "g",
        [helper.make_tensor_value_info(name, TensorProto.INT64, one) for name, one in inputs],
        [helper.make_tensor_value_info("y", TensorProto.INT64, None)],
        [numpy_helper.from_array(np.array(constants[one]), one) for one in more],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    with pytest.raises(RunRefused) as raised:
        opened(model).run({"x": np.array([[1, 2], [3, 4]]), "second": whole})
    assert not re.search(r"onnxruntime|::|\.cc|0x", str(raised.value))


def test_running_out_of_memory_does_not_blame_the_input(opened: Opener) -> None:
    """An allocation that cannot be had is not worth a retry in halves."""
    fill = helper.make_node("ConstantOfShape", ["size"], ["y"])
    graph = helper.make_graph(
        [fill],
        "g",
        [helper.make_tensor_value_info("size", TensorProto.INT64, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with pytest.raises(InferenceFailed, match="out of memory") as raised:
        opened(model).run({"size": np.array([2**45])})
    assert not raised.value.blames_input


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Conv "
            "node. Name:'c' Status Message: /onnxruntime_src/onnxruntime/core/providers/cuda/"
            "cuda_call.cc:129 std::conditional_t<THRW, void, Status> onnxruntime::CudaCall(ERRTYPE,"
            " const char*, const char*, SUCCTYPE, const char*, const char*, int) [with ERRTYPE = "
            "cudaError; bool THRW = true] CUDA failure 700: an illegal memory access was "
            "encountered ; GPU=0 ; hostname=box7 ; file=/onnxruntime_src/cuda_allocator.cc ; "
            "line=99 ; expr=cudaMalloc();",
            "the device failed: CUDA failure 700: an illegal memory access was encountered",
        ),
        ("CUDNN failure 4001: CUDNN_STATUS_INTERNAL_ERROR ; GPU=0", "CUDNN"),
        ("CUBLAS failure 13: CUBLAS_STATUS_EXECUTION_FAILED ; GPU=0 ; hostname=box7", "CUBLAS"),
        ("TensorRT EP execution context enqueue failed.", "TensorRT EP"),
    ],
)
def test_device_errors_do_not_blame_the_input(said: str, told: str) -> None:
    """A device's report does not blame an input; hosts and source files stay out of it."""
    failure = run_failure(RuntimeError(said))
    assert isinstance(failure, InferenceFailed)
    assert not failure.blames_input
    assert told in str(failure)
    for internal in ("box7", "onnxruntime_src", "cuda_call", "cuda_allocator", "CudaCall("):
        assert internal not in str(failure)


@pytest.mark.parametrize(
    ("said", "lost"),
    [
        ("CUDA failure 700: an illegal memory access was encountered ; GPU=0", True),
        ("CUDA failure 719: unspecified launch failure ; GPU=0", True),
        ("CUDA failure 214: uncorrectable ECC error encountered ; GPU=1", True),
        ("DXGI_ERROR_DEVICE_REMOVED: The GPU device instance has been suspended", True),
        ("CUDNN failure 4001: CUDNN_STATUS_INTERNAL_ERROR ; GPU=0", False),
        ("CUDA failure 1: invalid argument ; GPU=0", False),
        ("TensorRT EP execution context enqueue failed.", False),
    ],
)
def test_a_device_that_is_lost_is_told_from_one_that_failed(said: str, lost: bool) -> None:
    """After some errors every later run fails there; after others the next succeeds."""
    failure = run_failure(RuntimeError(said))
    assert isinstance(failure, InferenceFailed)
    assert failure.device_lost is lost


def test_device_out_of_memory_is_memory() -> None:
    """CUDA's and the arena's ways of saying out of memory are one."""
    for said in (
        "CUDA failure 2: out of memory ; GPU=0 ; hostname=box7",
        "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0",
        "bfc_arena.cc:376 Failed to allocate memory for requested buffer of size 137438953472",
        "std::bad_alloc",
    ):
        failure = run_failure(RuntimeError(said))
        assert isinstance(failure, InferenceFailed)
        assert (str(failure), failure.blames_input) == (
            "out of memory while running the model",
            False,
        )


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "[ONNXRuntimeError] : 1 : FAIL : Load model from /srv/secret/m.onnx failed:/src/core/"
            "graph/model.cc:256 onnxruntime::Model::Model(onnx::ModelProto&&, const onnxruntime::"
            "PathString&, const IOnnxRuntimeOpSchemaRegistryList*) Missing model IR version.\n",
            "Missing model IR version",
        ),
        (
            "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Op node. "
            "Name:'' Status Message: /src/op_kernel.cc:87 virtual OrtValue* onnxruntime::Kernel::"
            "OutputMLValue(int, const onnxruntime::TensorShape&) [ONNXRuntimeError] : 1 : FAIL : "
            "tensor.cc:57 CalculateTensorStorageSize Tensor shape.Size() must be >= 0\n",
            "Tensor shape.Size() must be >= 0",
        ),
        ("Cannot open C:\\secret\\folder\\x.bin at 0x7f00aa12", "Cannot open x.bin at …"),
        ("Div by zero: 1/0 in a ratio of 3/4", "Div by zero: 1/0 in a ratio of 3/4"),
        (
            "Exception during initialization: /src/string_normalizer.cc:103 ::<lambda()> Failed to "
            "construct locale with name:xx_YY.UTF-8:locale::facet::_S_create_c_locale name not "
            "valid:Please, install necessary language-pack-XX and configure locales",
            "it changes text by the locale xx_YY.UTF-8, which this machine does not have: "
            "`localedef -i xx_YY -f UTF-8 xx_YY.UTF-8` makes it (Debian: apt-get install locales)",
        ),
    ],
)
def test_sentences_keep_what_helps(said: str, told: str) -> None:
    """Status codes, C++ signatures, paths and addresses go; what was wrong stays."""
    assert sentence(said) == told


@given(st.text(max_size=300))
def test_any_error_becomes_one_of_ours(said: str) -> None:
    """No words of the runtime's make the conversion fail."""
    assert isinstance(run_failure(RuntimeError(said)), CohortError)


def test_stopped_before_it_starts(opened: Opener) -> None:
    """A control that is stopped already ends the run; the session stays usable without it."""
    session = opened(onnx_models.slow(nodes=2, size=4))
    feeds = {"x": np.ones((1, 4), "f4")}
    control = session.control()
    control.stop()
    with pytest.raises(InferenceFailed, match="stopped") as raised:
        session.run(feeds, control)
    assert not raised.value.blames_input
    assert session.run(feeds)[0].tolist() == [[1, 1, 1, 1]]
    assert session.run(feeds, session.control())[0].tolist() == [[1, 1, 1, 1]]


def test_stopped_from_another_thread_while_running(opened: Opener) -> None:
    """A run in progress ends between two nodes when another thread stops it."""
    session = opened(onnx_models.endless())
    control = session.control()
    running = threading.Event()
    failures: list[CohortError] = []

    def run() -> None:
        running.set()
        try:
            session.run({"x": np.ones((1, 3), "f4")}, control)
        except CohortError as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    running.wait()
    control.stop()
    thread.join(PATIENCE)
    assert [str(failure) for failure in failures] == ["the run was stopped"]


def test_closed_session_says_so(opened: Opener) -> None:
    """After `close`, a run is refused without touching the model."""
    session = opened(onnx_models.mlp())
    session.close()
    session.close()
    with pytest.raises(InferenceFailed, match="closed"):
        session.run({"x": np.ones((1, 4), "f4")})


# ---- models that cannot be opened


def _changed(change: Callable[[onnx.ModelProto], object]) -> bytes:
    model = onnx_models.mlp()
    change(model)
    return bytes(model.SerializeToString())


def _custom_operator(model: onnx.ModelProto) -> None:
    model.graph.node[0].domain = "com.nope"
    model.opset_import.append(onnx.helper.make_opsetid("com.nope", 1))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "the file is empty"),
        (onnx_models.mlp().SerializeToString()[:150], "not an ONNX model, or is truncated"),
        (_changed(lambda model: model.ClearField("graph")), "holds no graph"),
        (onnx_models.mlp().SerializeToString().replace(b"\x12\x01N", b"\x12\x01\xff"), "UTF-8"),
        (
            _changed(lambda model: setattr(model, "ir_version", 14)),
            "reads up to 13: save it with onnx 1.21 or older, or set model.ir_version = 13 before",
        ),
        (
            _changed(lambda model: setattr(model.opset_import[0], "version", 28)),
            "reads up to 26: export it for that (opset_version of torch.onnx.export, target_opset "
            "of skl2onnx and onnxmltools), or with onnx 1.21 or older",
        ),
        (
            _changed(lambda model: setattr(model.graph.node[0], "op_type", "Nope")),
            "does not know its operator Nope of ai.onnx in opset 21: check its name",
        ),
        (
            _changed(lambda model: setattr(model.graph.node[0], "domain", "com.nope")),
            "a node is of the domain 'com.nope', for which the model names no opset",
        ),
        (
            _changed(_custom_operator),
            "its operator Gemm of the domain com.nope is not part of ONNX Runtime. Add the "
            "operator's library to session.custom_op_libraries in config.yaml",
        ),
    ],
    ids=[
        "empty",
        "truncated",
        "no graph",
        "utf-8",
        "ir",
        "opset",
        "operator",
        "domain",
        "custom operator",
    ],
)
def test_bad_model_is_refused_in_a_sentence(tmp_path: Path, content: bytes, told: str) -> None:
    """A model that cannot be opened is a LoadFailed with the reason."""
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(LoadFailed) as raised:
        open_session(path)
    assert told in str(raised.value)
    for noise in ("onnxruntime", "ONNXRuntimeError", "std::", str(tmp_path), "\n"):
        assert noise not in str(raised.value)


def test_missing_file_and_folder_are_refused(tmp_path: Path) -> None:
    """Without a model, or with a folder in its place, the error names that."""
    with pytest.raises(LoadFailed, match=r"model\.onnx not found"):
        open_session(tmp_path / "model.onnx")
    with pytest.raises(LoadFailed, match="is not a file"):
        open_session(tmp_path)


# One folder for all examples is fine: each writes its own file over the last.
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.binary(max_size=200)
    | st.builds(
        lambda at, byte: (
            (good := onnx_models.mlp().SerializeToString())[: at % len(good)]
            + bytes([byte])
            + good[at % len(good) + 1 :]
        ),
        st.integers(0, 10_000),
        st.integers(0, 255),
    )
)
def test_damaged_bytes_raise_nothing_but_load_failed(tmp_path: Path, content: bytes) -> None:
    """Random bytes, or a model with one byte changed, open or raise LoadFailed."""
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with contextlib.suppress(LoadFailed):
        open_session(path, chain=ON_CPU).close()


# ---- external data


def test_external_data_beside_the_model_is_used(tmp_path: Path) -> None:
    """Weights in a file of the version's folder are found."""
    inline = onnx_models.save(onnx_models.mlp(), tmp_path / "1" / "model.onnx")
    outside = onnx_models.save_with_external_data(onnx_models.mlp(), tmp_path / "2" / "model.onnx")
    feeds = {"x": np.ones((2, 4), "f4")}
    expected = open_session(inline, chain=ON_CPU).run(feeds)[0]
    assert open_session(outside, chain=ON_CPU).run(feeds)[0].tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("location", "told"),
    [
        ("../weights.bin", "leaves the version's folder"),
        ("inner/../weights.bin", "leaves the version's folder"),
        ("/etc/passwd", "absolute path"),
        ("C:\\weights.bin", "absolute path"),
        ("link.bin", "link out of the version's folder"),
        ("folder/weights.bin", "link out of the version's folder"),
        ("absent.bin", "is missing"),
        ("nul\0.bin", "not a usable path"),
        ("x" * 5000, "not a usable path"),
    ],
)
def test_external_data_stays_in_the_folder(tmp_path: Path, location: str, told: str) -> None:
    """`..`, absolute paths, links out and missing files are refused, each with its own reason."""
    path = onnx_models.save_with_external_data(onnx_models.mlp(), tmp_path / "1" / "model.onnx")
    shutil.copy(tmp_path / "1" / "weights.bin", tmp_path / "weights.bin")
    (tmp_path / "1" / "link.bin").symlink_to("../weights.bin")
    (tmp_path / "1" / "folder").symlink_to("..")
    model = onnx.load(path, load_external_data=False)
    for weight in model.graph.initializer:
        for entry in weight.external_data:
            if entry.key == "location":
                entry.value = location
    onnx_models.save(model, path)
    with pytest.raises(LoadFailed, match=told):
        open_session(path, chain=ON_CPU)


def test_external_data_cut_short_is_refused(tmp_path: Path) -> None:
    """A weights file shorter than its declared length is a LoadFailed."""
    path = onnx_models.save_with_external_data(onnx_models.mlp(), tmp_path / "1" / "model.onnx")
    (tmp_path / "1" / "weights.bin").write_bytes(b"short")
    with pytest.raises(LoadFailed):
        open_session(path, chain=ON_CPU)


# ---- options


@pytest.mark.parametrize("level", ["all", "extended", "basic", "none"])
def test_every_optimization_level_opens(tmp_path: Path, level: str) -> None:
    """Each level of graph optimization gives the same numbers."""
    path = onnx_models.save(onnx_models.mlp(), tmp_path / "model.onnx")
    options = SessionOptions(intra_op_threads=2, graph_optimization=level)  # type: ignore[arg-type]
    feeds = {"x": np.ones((2, 4), "f4")}
    plain = open_session(path, chain=ON_CPU).run(feeds)[0]
    (answer,) = open_session(path, chain=ON_CPU, options=options).run(feeds)
    assert answer[0].tolist() == pytest.approx(plain[0].tolist(), rel=1e-5)


# ---- the rules


def test_custom_operators_are_loaded_from_configured_folders_only(tmp_path: Path) -> None:
    """A name or path that leads elsewhere, links followed, is refused with the setting's name."""
    path = onnx_models.save(onnx_models.mlp(), tmp_path / "m" / "1" / "model.onnx")
    allowed = tmp_path / "ops"
    allowed.mkdir()
    (tmp_path / "m" / "out.so").write_bytes(b"not a library")
    (allowed / "link.so").symlink_to(tmp_path / "m" / "out.so")
    (allowed / "in.so").write_bytes(b"not a library")

    def refusal(name: str, *folders: Path) -> str:
        options = SessionOptions(custom_op_libraries=(name,))
        with pytest.raises(LoadFailed) as caught:
            open_session(path, chain=ON_CPU, options=options, rules=ModelRules(custom_ops=folders))
        return str(caught.value)

    outside = ("out.so", str(tmp_path / "m" / "out.so"), "../m/out.so", "link.so", "none.so", "")
    for name in outside:
        assert "are not a file in any folder that COHORT_CUSTOM_OPS names" in refusal(name, allowed)
    assert "COHORT_CUSTOM_OPS names no folder" in refusal("in.so")
    for name in ("in.so", str(allowed / "in.so")):  # found, and no library
        assert "COHORT_CUSTOM_OPS" not in refusal(name, tmp_path / "none", allowed)


def test_extensions_are_found_by_their_name(tmp_path: Path) -> None:
    """The library of the installed package runs its operators, though no folder is configured."""
    path = onnx_models.save(onnx_models.decoded_image(), tmp_path / "model.onnx")
    options = SessionOptions(custom_op_libraries=(EXTENSIONS,))
    session = open_session(path, chain=ON_CPU, options=options)
    assert ModelRules().find_library(EXTENSIONS) == onnx_models.decoders_library().resolve()
    session.close()


def test_size_of_a_model_counts_its_external_data(tmp_path: Path) -> None:
    """Beyond the limit it is refused before ONNX Runtime reads it."""
    path = onnx_models.save_with_external_data(onnx_models.mlp(), tmp_path / "model.onnx")
    size = path.stat().st_size + (tmp_path / "weights.bin").stat().st_size
    open_session(path, chain=ON_CPU, rules=ModelRules(max_bytes=size)).close()
    for less in (size - 1, 1):
        with pytest.raises(LoadFailed, match="COHORT_MAX_MODEL_MB"):
            open_session(path, chain=ON_CPU, rules=ModelRules(max_bytes=less))


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file away")
def test_external_data_is_no_hard_link_to_somebody_elses_file(tmp_path: Path) -> None:
    """One to a file of the model's owner is fine: package stores and backups make them."""
    path = onnx_models.save_with_external_data(onnx_models.mlp(), tmp_path / "model.onnx")
    os.link(tmp_path / "weights.bin", tmp_path / "other.bin")
    open_session(path, chain=ON_CPU).close()
    os.chown(path, 12345, -1)
    with pytest.raises(LoadFailed, match="a hard link to a file of another owner"):
        open_session(path, chain=ON_CPU)


@pytest.mark.parametrize("name", ["model.onnx", "weights.bin"])
def test_pipes_are_not_waited_for(tmp_path: Path, name: str) -> None:
    """A pipe in place of a file is refused, not opened."""
    path = onnx_models.save_with_external_data(onnx_models.mlp(), tmp_path / "model.onnx")
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(LoadFailed):
        open_session(path, chain=ON_CPU)


# ---- the kept graph


@pytest.fixture
def always_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep every graph, however fast it opens."""
    monkeypatch.setattr(optimized_graph, "SLOW", 0.0)
    monkeypatch.setattr(optimized_graph, "pays", lambda opening, hashing: True)


def _kept(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.onnx"))


def test_keeping_pays_for_slow_graphs_with_little_weight() -> None:
    """What opens fast, or takes long to hash, is opened from its own file each time."""
    assert optimized_graph.pays(1.0, 0.01)
    assert not optimized_graph.pays(0.1, 0.0)
    assert not optimized_graph.pays(1.0, 0.5)


def test_fast_model_keeps_nothing(tmp_path: Path) -> None:
    """A small model leaves no file in the cache."""
    path = onnx_models.save(onnx_models.scalar(), tmp_path / "model.onnx")
    open_session(path, chain=ON_CPU, cache=tmp_path / "cache")
    assert _kept(tmp_path / "cache") == []


@pytest.mark.usefixtures("always_pays")
def test_kept_graph_is_used_and_changes_nothing(tmp_path: Path) -> None:
    """The second start opens the kept graph: same numbers, specs and metadata, no new file."""
    model = onnx_models.describe(onnx_models.mlp(layers=2), {"a": "b"})
    path = onnx_models.save(model, tmp_path / "model.onnx")
    first = open_session(path, chain=ON_CPU, cache=tmp_path / "cache")
    (kept,) = _kept(tmp_path / "cache")
    written = kept.stat().st_mtime_ns
    second = open_session(path, chain=ON_CPU, cache=tmp_path / "cache")
    assert [kept] == _kept(tmp_path / "cache")
    assert kept.stat().st_mtime_ns == written
    feeds = {"x": np.ones((2, 4), "f4")}
    assert first.run(feeds)[0].tolist() == second.run(feeds)[0].tolist()
    assert first.inputs == second.inputs
    assert first.outputs == second.outputs
    assert first.metadata == second.metadata


@pytest.mark.usefixtures("always_pays")
@pytest.mark.parametrize("damage", [b"", b"garbage"], ids=["emptied", "overwritten"])
def test_damaged_kept_graph_is_made_anew(tmp_path: Path, damage: bytes) -> None:
    """A kept graph whose content is not what was written is replaced."""
    path = onnx_models.save(onnx_models.mlp(), tmp_path / "model.onnx")
    open_session(path, chain=ON_CPU, cache=tmp_path / "cache")
    (kept,) = _kept(tmp_path / "cache")
    whole = kept.read_bytes()
    kept.write_bytes(damage)
    session = open_session(path, chain=ON_CPU, cache=tmp_path / "cache")
    assert session.run({"x": np.ones((1, 4), "f4")})[0].shape == (1, 3)
    assert kept.read_bytes() == whole


@pytest.mark.usefixtures("always_pays")
def test_changed_model_does_not_meet_the_old_graph(tmp_path: Path) -> None:
    """Other weights in a file of the same name, size and date are served as they are."""
    path = onnx_models.save(onnx_models.mlp(seed=0), tmp_path / "model.onnx")
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    feeds = {"x": np.ones((1, 4), "f4")}
    old = open_session(path, chain=ON_CPU, cache=tmp_path / "cache").run(feeds)[0]
    onnx_models.save(onnx_models.mlp(seed=1), path)
    os.utime(path, ns=times)
    new = open_session(path, chain=ON_CPU, cache=tmp_path / "cache").run(feeds)[0]
    assert old.tolist() != new.tolist()
    assert len(_kept(tmp_path / "cache")) == 1


@pytest.mark.usefixtures("always_pays")
def test_useless_cache_folder_is_no_failure(tmp_path: Path) -> None:
    """A cache that cannot be written to costs nothing but the time it would have saved."""
    path = onnx_models.save(onnx_models.mlp(), tmp_path / "model.onnx")
    (tmp_path / "cache").write_text("a file where the folder should be")
    session = open_session(path, chain=ON_CPU, cache=tmp_path / "cache")
    assert session.run({"x": np.ones((1, 4), "f4")})[0].shape == (1, 3)


@pytest.mark.usefixtures("always_pays")
def test_models_with_external_data_are_not_kept(tmp_path: Path) -> None:
    """Weights outside the file are not copied into the cache."""
    path = onnx_models.save_with_external_data(onnx_models.mlp(), tmp_path / "1" / "model.onnx")
    open_session(path, chain=ON_CPU, cache=tmp_path / "cache")
    assert _kept(tmp_path / "cache") == []


# ---- the process


def _in_a_process(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if key != "ORT_DISABLE_TELEMETRY"}
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[2], env={**clean, **environment},
        capture_output=True, text=True, check=True, timeout=600,
    )  # fmt: skip


SPY_ON_IMPORT = """
import builtins, os, sys
plain = builtins.__import__
def spy(name, *rest):
    if name.partition(".")[0] == "onnxruntime" and "onnxruntime" not in sys.modules:
        print(os.environ.get("ORT_DISABLE_TELEMETRY"))
        builtins.__import__ = plain
    return plain(name, *rest)
builtins.__import__ = spy
import cohort.session
"""


def test_telemetry_is_off_before_the_runtime_is_imported() -> None:
    """When onnxruntime is first imported, the variable that turns its telemetry off is set."""
    assert _in_a_process(SPY_ON_IMPORT).stdout == "1\n"


def test_a_users_own_word_on_telemetry_counts() -> None:
    """A variable that is set keeps its value."""
    assert _in_a_process(SPY_ON_IMPORT, ORT_DISABLE_TELEMETRY="0").stdout == "0\n"


def test_onnx_is_not_imported() -> None:
    """A serving process never imports the onnx package for a session."""
    assert (
        _in_a_process("import cohort.session, sys; print('onnx' in sys.modules)").stdout
        == "False\n"
    )


def test_the_runtime_writes_nothing_to_the_terminal(tmp_path: Path) -> None:
    """Neither a refused provider, nor a bad model, nor a failing run prints anything."""
    good = onnx_models.save(onnx_models.gather(), tmp_path / "good.onnx")
    bad = onnx_models.save(onnx_models.mlp(), tmp_path / "bad.onnx")
    bad.write_bytes(_changed(lambda model: setattr(model.graph.node[0], "op_type", "Nope")))
    done = _in_a_process(f"""
from pathlib import Path
import numpy as np
from cohort.errors import CohortError
from cohort.session import Provider, open_session
chain = [Provider(name) for name in ("tensorrt", "cuda", "cpu")]
session = open_session(Path({str(good)!r}), chain=chain)
for attempt in (
    lambda: session.run({{"index": np.array([9])}}),
    lambda: open_session(Path({str(bad)!r})),
):
    try:
        attempt()
    except CohortError:
        pass
""")
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be asked")
def test_memory_that_is_free_goes_back_to_the_system() -> None:
    """One piece still in use at the end prevents the allocator from doing so automatically."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    pieces = [bytes(2000 + number % 7) for number in range(40_000)]
    used = resident()
    last = pieces.pop()
    del pieces
    give_back_memory()
    assert resident() < used - 40 * 2**20
    del last


@pytest.mark.parametrize("operator", ["LSTM", "GRU"])
def test_a_run_of_no_rows_does_not_end_the_process(tmp_path: Path, operator: str) -> None:
    """ONNX Runtime would, in these operators: one request took the server down."""
    model = onnx_models.recurrent(operator)
    session = open_session(onnx_models.save(model, tmp_path / "model.onnx"))
    for shape in ((2, 0, 3), (0, 1, 3), (0, 0, 3)):
        with pytest.raises(InvalidInput, match=r"'x' is empty.* send at least one row"):
            session.run({"x": np.ones(shape, np.float32)})
    assert session.run({"x": np.ones((2, 1, 3), np.float32)})[0].shape == (2, 1, 1, 2)


def test_other_models_run_without_rows(tmp_path: Path) -> None:
    """Inputs without rows give outputs without rows."""
    session = open_session(onnx_models.save(onnx_models.mlp(), tmp_path / "model.onnx"))
    assert session.run({"x": np.ones((0, 4), np.float32)})[0].shape[0] == 0
