"""Whatever is sent, the answer is one that a client can act on."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from grpc import StatusCode, aio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cohort.tensors import BY_NAME
from tests.e2e.processes import Cohort
from tests.examples import examples
from tests.rpc.client import Request, connected, raw_request
from tests.waiting import PATIENCE

FINE = {StatusCode.OK, StatusCode.INVALID_ARGUMENT, StatusCode.NOT_FOUND}

MODELS = ["identity_fp32", "identity_bytes", "two_inputs", "iris", "no_inputs", "scalar", "no"]
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 5)

parameters = st.dictionaries(
    st.sampled_from(["timeout", "classification", "shared_memory_region", "a"]),
    st.one_of(
        st.fixed_dictionaries({"int64_param": NUMBERS}),
        st.fixed_dictionaries({"string_param": st.text(max_size=20)}),
        st.fixed_dictionaries({"bool_param": st.booleans()}),
        st.fixed_dictionaries({"double_param": st.floats()}),
        st.just({}),
    ),
    max_size=2,
)
contents = st.fixed_dictionaries(
    {},
    optional={
        "bool_contents": st.lists(st.booleans(), max_size=4),
        "int_contents": st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4),
        "int64_contents": st.lists(NUMBERS, max_size=4),
        "uint64_contents": st.lists(st.integers(0, 2**64 - 1), max_size=4),
        "uint_contents": st.lists(st.integers(0, 2**32 - 1), max_size=4),
        "fp32_contents": st.lists(st.floats(width=32), max_size=6),
        "fp64_contents": st.lists(st.floats(), max_size=4),
        "bytes_contents": st.lists(st.binary(max_size=8), max_size=4),
    },
)
tensors = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["x", "a", "b", "features", ""]) | st.text(max_size=5),
        "datatype": st.sampled_from([*BY_NAME, ""]) | st.text(max_size=5),
        "shape": st.lists(NUMBERS, max_size=4) | st.just([1, 3]) | st.just([1, 4]),
        "parameters": parameters,
    },
    optional={"contents": contents},
)
messages = st.builds(
    Request,
    model_name=st.sampled_from(MODELS),
    model_version=st.sampled_from(["", "1"]) | st.text(max_size=5),
    id=st.text(max_size=5),
    parameters=parameters,
    inputs=st.lists(tensors, max_size=3),
    outputs=st.lists(
        st.fixed_dictionaries(
            {"name": st.sampled_from(["y", "label", "sum", "no"]), "parameters": parameters}
        ),
        max_size=2,
    ),
    raw_input_contents=st.lists(st.binary(max_size=20) | st.just(bytes(12)), max_size=3),
)
GOOD = raw_request(
    "two_inputs", {"a": np.ones((2, 2), "f4"), "b": np.ones((2, 2), "f4")}, id="7"
).SerializeToString()


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Return a good request with some bytes changed, taken out, or cut off."""
    data = bytearray(GOOD)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        match draw(st.sampled_from(["change", "remove", "insert", "cut"])):
            case "change" if data:
                data[at] = draw(st.integers(0, 255))
            case "remove" if data:
                del data[at]
            case "insert":
                data.insert(at, draw(st.integers(0, 255)))
            case "cut":
                del data[max(at, 1) :]
    return bytes(data)


@pytest.fixture(scope="module")
def loop() -> Any:
    """One event loop for all examples."""
    with asyncio.Runner() as runner:
        yield runner


async def status_of(server: Cohort, data: bytes) -> StatusCode:
    """Send these bytes, and ask for a sign of life on the same connection."""
    async with connected(server.grpc) as client:
        try:
            await client.raw("ModelInfer", data, timeout=PATIENCE)
        except aio.AioRpcError as error:
            status = error.code()
        else:
            status = StatusCode.OK
        await client.raw("ServerLive", b"", timeout=PATIENCE)
    return status


QUIET = settings(
    deadline=None,
    max_examples=examples(150),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@QUIET
@given(message=messages)
def test_odd_messages_get_a_clear_refusal(
    server: Cohort, loop: asyncio.Runner, message: Request
) -> None:
    """The status is never UNKNOWN or INTERNAL, no call hangs, and the connection continues."""
    status = loop.run(status_of(server, message.SerializeToString()))
    # A timeout of some microseconds may be over before the run is.
    assert status in FINE or (status is StatusCode.DEADLINE_EXCEEDED and "timeout" in str(message))


@QUIET
@given(data=mutated() | st.binary(max_size=200))
def test_broken_bytes_get_a_clear_refusal(
    server: Cohort, loop: asyncio.Runner, data: bytes
) -> None:
    """Bytes that are not a message, or almost one, are reported as the caller's mistake."""
    assert loop.run(status_of(server, data)) in FINE
