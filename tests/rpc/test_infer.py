"""ModelInfer over a real connection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from grpc import StatusCode, aio

from cohort.rpc import inference_pb2 as messages
from cohort.rpc.contents import FIELDS
from cohort.rpc.wire import SHORT_MESSAGE
from cohort.tensors import BY_NAME, Array
from tests.e2e.processes import Cohort
from tests.rpc.client import (
    Client,
    Request,
    arrays_of,
    named,
    raw_request,
    typed_request,
)
from tests.rpc.conftest import DATATYPES

X = np.array([[1, 2, 3]], "f4")
AB = {"a": np.array([[5, 7]], "f4"), "b": np.array([[1, 2]], "f4")}


async def serialized(message: Request, times: int) -> AsyncIterator[bytes]:
    """The same message again and again."""
    for _ in range(times):
        yield message.SerializeToString()


def resident(server: Cohort) -> float:
    """Memory of the server in MB."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def sample(datatype: str) -> Array:
    """Two rows with the datatype's extremes among them."""
    dtype, bits = BY_NAME[datatype].dtype, BY_NAME[datatype].bits
    if bits < 16 and datatype not in FIELDS:  # an extension of ours
        return np.array([[1, 0.5, 2], [1, 1, 0.5]]).astype(dtype)
    if datatype == "BYTES":
        return np.array([["", "naïve 🐈", "\0"], ["x" * 300, "y", "z"]], np.object_)
    if datatype == "BOOL":
        return np.array([[True, False, True], [False, False, True]])
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)  # type: ignore[type-var]
        return np.array([[limits.min, limits.max, 0], [1, 2, 3]], dtype)
    limit = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    return np.array([[limit.max, limit.tiny, -0.0], [np.nan, np.inf, -1.5]], dtype)


@pytest.mark.parametrize("datatype", DATATYPES)
async def test_every_datatype_goes_through_raw(client: Client, datatype: str) -> None:
    """They are equal bit by bit, extremes, NaN and infinities included; the answer is also raw."""
    array = sample(datatype)
    answer = await client.call(
        "ModelInfer", raw_request(f"identity_{datatype.lower()}", {"x": array})
    )
    assert [(one.datatype, list(one.shape)) for one in answer.outputs] == [(datatype, [2, 3])]
    assert not answer.outputs[0].HasField("contents")
    back = arrays_of(answer)["y"]
    if datatype == "BYTES":
        assert back.tolist() == array.tolist()
    else:
        assert back.tobytes() == array.tobytes()


@pytest.mark.parametrize("datatype", FIELDS)
async def test_every_datatype_with_a_field_goes_through_typed(
    client: Client, datatype: str
) -> None:
    """Typed values are answered raw, as by Triton, and typed on request.

    KServe's `InferOutput.data` is empty otherwise.
    """
    array = sample(datatype)
    request = typed_request(f"identity_{datatype.lower()}", {"x": array})
    raw = await client.call("ModelInfer", request)
    request.parameters["binary_data_output"].bool_param = False
    typed = await client.call("ModelInfer", request)
    assert len(raw.raw_output_contents) == 1
    assert not raw.outputs[0].HasField("contents")
    assert not typed.raw_output_contents
    for answer in (raw, typed):
        back = arrays_of(answer)["y"]
        assert back.dtype == array.dtype
        np.testing.assert_array_equal(back, array)


async def test_raw_tensors_may_be_answered_typed(client: Client) -> None:
    """Only the parameter determines the form of the answer; `true` is the default."""
    request = raw_request("identity_fp32", {"x": X})
    for raw in (True, False):
        request.parameters["binary_data_output"].bool_param = raw
        answer = await client.call("ModelInfer", request)
        assert bool(answer.raw_output_contents) is raw
        np.testing.assert_array_equal(arrays_of(answer)["y"], X)
    request.parameters["binary_data_output"].string_param = "false"
    await refused(client, request, "parameters.binary_data_output must be true or false")


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
async def test_what_has_no_field_travels_raw_only(client: Client, datatype: str) -> None:
    """Typed contents for 16-bit floats are refused, and the sentence names the right field."""
    request = Request(model_name=f"identity_{datatype.lower()}")
    tensor = request.inputs.add(name="x", datatype=datatype, shape=[1, 3])
    tensor.contents.fp32_contents.extend([1, 2, 3])
    await refused(client, request, "raw_input_contents")


@pytest.mark.parametrize("shape", [[0, 3], [1, 3]])
async def test_empty_and_single_rows(client: Client, shape: list[int]) -> None:
    """A tensor without elements is a tensor; both forms carry it."""
    array = np.zeros(shape, "f4")
    for request in (raw_request, typed_request):
        answer = await client.call("ModelInfer", request("identity_fp32", {"x": array}))
        assert arrays_of(answer)["y"].shape == tuple(shape)


async def test_scalars_and_any_rank(client: Client) -> None:
    """A shape without dimensions is one value; where the rank is open, any goes."""
    assert (await client.infer("scalar", {"x": np.array(3, "f4")}))["y"] == 6
    for shape in ((), (2,), (1, 2, 1, 2, 1)):
        answer = await client.infer("any_rank", {"x": np.ones(shape, "f4")})
        assert answer["y"].shape == shape


async def test_a_model_without_inputs_answers(client: Client) -> None:
    """Nothing is sent, everything comes back, raw."""
    answer = await client.infer("no_inputs", {})
    assert answer["y"].tolist() == [1, 2, 3]


async def test_answer_says_who_answered_whom(client: Client) -> None:
    """It has model, version and the request's id; without a rollout there is no variant."""
    request = raw_request("identity_fp32", {"x": X}, id="a1")
    answer = await client.call("ModelInfer", request)
    assert (answer.model_name, answer.model_version, answer.id) == ("identity_fp32", "1", "a1")
    assert not answer.parameters


async def test_outputs_come_as_asked(client: Client) -> None:
    """All are in the model's order, or the named ones in theirs; a name may repeat."""
    assert list(await client.infer("two_inputs", AB)) == ["sum", "difference"]
    some = await client.infer("two_inputs", AB, outputs=named(["difference", "sum"]))
    assert list(some) == ["difference", "sum"]
    assert some["difference"].tolist() == [[4, 5]]


async def test_inputs_may_come_in_any_order(client: Client) -> None:
    """Raw contents belong to inputs by position, inputs to the model by name."""
    swapped = {"b": AB["b"], "a": AB["a"]}
    assert (await client.infer("two_inputs", swapped))["difference"].tolist() == [[4, 5]]


async def test_best_classes_in_place_of_values(client: Client) -> None:
    """`classification` gives `value:index`, the highest first, as many as there are at most."""
    for count, expected in ((2, ["3.0:2", "2.0:1"]), (9, 3)):
        request = raw_request("identity_fp32", {"x": X}, outputs=named(["y"]))
        request.outputs[0].parameters["classification"].int64_param = count
        answer = await client.call("ModelInfer", request)
        assert answer.outputs[0].datatype == "BYTES"
        classes = arrays_of(answer)["y"]
        if isinstance(expected, list):
            assert classes.tolist() == [expected]
        else:
            assert classes.shape == (1, expected)


async def refused(
    client: Client,
    request: Request,
    *words: str,
    status: StatusCode = StatusCode.INVALID_ARGUMENT,
) -> aio.AioRpcError:
    """The call fails with `status`, and its sentence has all of `words`."""
    with pytest.raises(aio.AioRpcError) as caught:
        await client.call("ModelInfer", request)
    assert caught.value.code() is status, caught.value.details()
    for word in words:
        assert word in (caught.value.details() or "")
    return caught.value


async def test_every_error_has_its_status_and_its_name(client: Client) -> None:
    """It follows the status table of the design; `error-code` has the error's name."""
    unknown = await refused(
        client, raw_request("identity_fp23", {"x": X}), "identity_fp32", status=StatusCode.NOT_FOUND
    )
    assert dict(unknown.trailing_metadata())["error-code"] == "ModelNotFound"
    version = raw_request("identity_fp32", {"x": X}, model_version="7")
    error = await refused(client, version, "'7'", status=StatusCode.NOT_FOUND)
    assert dict(error.trailing_metadata())["error-code"] == "VersionNotFound"
    error = await refused(client, raw_request("identity_fp32", {}), "'x' is missing")
    assert dict(error.trailing_metadata())["error-code"] == "InvalidInput"
    failing = raw_request("gather", {"index": np.array([7])})
    with pytest.raises(aio.AioRpcError) as caught:
        await client.call("ModelInfer", failing)
    assert caught.value.code() in {StatusCode.INTERNAL, StatusCode.INVALID_ARGUMENT}
    assert "bounds" in (caught.value.details() or "")


async def test_what_does_not_fit_is_named(client: Client) -> None:
    """Each way to send a tensor wrongly gets INVALID_ARGUMENT with the tensor's name."""

    def change(**fields: object) -> Request:
        request = raw_request("identity_fp32", {"x": X})
        for name, value in fields.items():
            if name == "shape":
                del request.inputs[0].shape[:]
                request.inputs[0].shape.extend(value)  # type: ignore[arg-type]
            else:
                setattr(request.inputs[0], name, value)
        return request

    await refused(client, change(name="z"), "'z'", "available: x")
    await refused(client, change(datatype="FP64"), "'x'", "FP32", "FP64")
    await refused(client, change(datatype="nonsense"), "'x'", "nonsense")
    await refused(client, change(shape=[1, 4]), "'x'")
    await refused(client, change(shape=[3]), "'x'")
    await refused(client, change(shape=[-1, 3]), "'x'")
    await refused(client, change(shape=[2**62, 2**62]), "'x'")
    await refused(client, change(shape=[0] + [1] * 80), "'x'")
    twice = change()
    twice.inputs.append(twice.inputs[0])
    twice.raw_input_contents.append(twice.raw_input_contents[0])
    await refused(client, twice, "inputs[1].name repeats 'x'")
    short = change()
    short.raw_input_contents[0] = b"123"
    await refused(client, short, "'x'", "12 bytes")
    outputs = change()
    outputs.outputs.add(name="Y")
    await refused(client, outputs, "'Y'", "available: y")
    outputs = change()
    outputs.outputs.add(name="y")
    outputs.outputs.add(name="y")
    await refused(client, outputs, "outputs[1].name repeats 'y'")


async def test_raw_and_typed_do_not_mix(client: Client) -> None:
    """A request has one raw entry per input or none; with raw entries no input has contents."""
    fewer = raw_request("two_inputs", AB)
    del fewer.raw_input_contents[1]
    await refused(client, fewer, "raw_input_contents", "1", "2")
    both = raw_request("two_inputs", AB)
    both.inputs[1].contents.fp32_contents.extend([1, 2])
    await refused(client, both, "inputs[1]", "raw_input_contents")


@pytest.mark.parametrize("rows", [1, 2 * SHORT_MESSAGE])
async def test_contents_without_a_value_beside_raw_are_none(client: Client, rows: int) -> None:
    """MLServer's client sends `contents {}` with every raw tensor, also in long messages."""
    array = np.ones((rows, 3), "f4")
    request = raw_request("identity_fp32", {"x": array})
    request.inputs[0].contents.SetInParent()
    assert request.inputs[0].HasField("contents")
    answer = await client.call("ModelInfer", request)
    np.testing.assert_array_equal(arrays_of(answer)["y"], array)


async def test_typed_values_are_checked(client: Client) -> None:
    """The wrong field, too few values, or one out of range are each named."""
    wrong = Request(model_name="identity_fp32")
    wrong.inputs.add(name="x", datatype="FP32", shape=[1, 3]).contents.int_contents.extend([1] * 3)
    await refused(client, wrong, "inputs[0]", "fp32_contents", "int_contents")
    few = typed_request("identity_fp32", {"x": X})
    few.inputs[0].contents.fp32_contents.pop()
    await refused(client, few, "'x'", "2", "3")
    large = Request(model_name="identity_int8")
    large.inputs.add(name="x", datatype="INT8", shape=[1, 3]).contents.int_contents.extend(
        [1, 128, 3]
    )
    await refused(client, large, "'x'", "INT8")
    text = Request(model_name="identity_bytes")
    text.inputs.add(name="x", datatype="BYTES", shape=[1, 3]).contents.bytes_contents.extend(
        [b"a", b"\xff\xfe", b"c"]
    )
    await refused(client, text, "'x'", "UTF-8")


async def test_what_cannot_be_carried_is_told(client: Client) -> None:
    """A sequence can neither be sent nor asked for; its name and kind are in the sentence."""
    request = raw_request("sequence", {"x": X}, outputs=named(["rows"]))
    await refused(client, request, "'rows'", "seq(")


async def test_shared_memory_is_refused(client: Client) -> None:
    """It is refused unless the operator allows it; the sentence names the setting."""
    request = raw_request("identity_fp32", {"x": X})
    del request.raw_input_contents[:]
    request.inputs[0].parameters["shared_memory_region"].string_param = "r"
    request.inputs[0].parameters["shared_memory_byte_size"].int64_param = 24
    await refused(client, request, "COHORT_SHARED_MEMORY is not set")
    request = raw_request("identity_fp32", {"x": X}, outputs=named(["y"]))
    request.outputs[0].parameters["shared_memory_region"].string_param = "r"
    request.outputs[0].parameters["shared_memory_byte_size"].int64_param = 24
    await refused(client, request, "COHORT_SHARED_MEMORY is not set")


@pytest.mark.parametrize("value", [{"string_param": "soon"}, {"int64_param": -1}])
async def test_a_bad_timeout_is_refused(client: Client, value: dict[str, object]) -> None:
    """It is a whole number of microseconds."""
    request = raw_request("identity_fp32", {"x": X})
    request.parameters["timeout"].CopyFrom(messages.InferParameter(**value))  # type: ignore[arg-type]
    await refused(client, request, "parameters.timeout")


async def test_parameters_nobody_knows_change_nothing(client: Client) -> None:
    """Triton's clients send some others: priority, sequence flags."""
    request = raw_request("identity_fp32", {"x": X})
    request.parameters["priority"].uint64_param = 3
    request.parameters["sequence_end"].bool_param = False
    answer = await client.call("ModelInfer", request)
    assert arrays_of(answer)["y"].tolist() == X.tolist()


async def test_a_message_that_is_refused_is_freed_with_its_error(
    server: Cohort, client: Client
) -> None:
    """A hundred large ones leave as much behind as one: nothing waits for the collector."""
    wrong = raw_request("identity_fp32", {"x": np.zeros((200_000, 2), "f4")})

    async def refuse(times: int) -> float:
        for _ in range(times):
            with pytest.raises(aio.AioRpcError, match="shape"):
                await client.call("ModelInfer", wrong)
        stream = client.stream(serialized(wrong, times))
        assert len([one async for one in stream if "shape" in one.error_message]) == times
        return resident(server)

    before = await refuse(2)
    assert await refuse(50) - before < 40  # the total is 160 MB
