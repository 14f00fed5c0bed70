"""Validation of requests, and their use by a version, without a wire."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from cohort.errors import InvalidInput
from cohort.open_inference import NO_PARAMETERS, InputTensor, Parameters, make_request
from cohort.open_inference.inference import decode_input
from cohort.open_inference.parameters import MAX_NUMBER, read_timeout, whole_number
from cohort.tensors import TensorSpec


def tensor(name: str = "x", **fields: Any) -> InputTensor:
    """Return an input of three FP32."""
    return InputTensor(name, "FP32", [1, 3], NO_PARAMETERS, **{"data": [1, 2, 3], **fields})


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        (0, None),
        ("0", None),
        (1, 1e-6),
        ("1000", 1e-3),
        (10**16, 1e10),
        (MAX_NUMBER, MAX_NUMBER / 1e6),
        ("0" * 19 + "1", 1e-6),
    ],
)
def test_a_timeout_is_in_microseconds(value: object, seconds: float | None) -> None:
    """It is a number or a decimal string; 0 means no timeout, as Triton's clients send it."""
    assert read_timeout({"timeout": value}) == seconds


@pytest.mark.parametrize(
    "value", [-1, "-1", "+1", " 1", "1.0", "", "x", 1.0, True, [], {}, MAX_NUMBER + 1, "9" * 21]
)
def test_what_is_no_whole_number_is_refused(value: object) -> None:
    """The error gives the place of the value."""
    with pytest.raises(InvalidInput, match=r"^here must be a whole number >= 0, got "):
        whole_number("here", value)


def test_an_outputs_own_form_counts_before_the_requests() -> None:
    """binary_data overrides binary_data_output; without outputs, it holds for all."""
    request = make_request(
        [tensor()],
        [("a", {"binary_data": False}), ("b", NO_PARAMETERS), ("c", {"classification": 2})],
        parameters={"binary_data_output": True},
    )
    assert request.outputs is not None
    assert [(one.name, one.binary, one.classes) for one in request.outputs] == [
        ("a", False, 0),
        ("b", True, 0),
        ("c", True, 2),
    ]
    assert make_request([tensor()], []).outputs is None


def test_the_place_of_a_repeated_name_is_told() -> None:
    """The place is given for an input and for an output."""
    with pytest.raises(InvalidInput, match=r"^inputs\[1\]\.name repeats 'x'$"):
        make_request([tensor(), tensor()], [])
    with pytest.raises(InvalidInput, match=r"^outputs\[2\]\.name repeats 'y'$"):
        make_request([tensor()], [("y", {}), ("z", {}), ("y", {})])


@pytest.mark.parametrize("part", ["request", "input", "output"])
def test_unknown_parameters_of_shared_memory_are_refused_wherever_they_stand(part: str) -> None:
    """The error has the place, and the name up to a bound."""
    sent = {"shared_memory_region" + "x" * 10_000: "r"}
    inputs = [InputTensor("x", "FP32", [1], sent if part == "input" else NO_PARAMETERS)]
    outputs = [("y", sent if part == "output" else NO_PARAMETERS)]
    parameters = sent if part == "request" else NO_PARAMETERS
    with pytest.raises(InvalidInput, match="shared memory") as refused:
        make_request(inputs, outputs, parameters=parameters)
    assert len(str(refused.value)) < 300


class Counted(str):
    """A name that counts how often any of its kind is compared or hashed."""

    looks = 0

    def __eq__(self, other: object) -> bool:
        Counted.looks += 1
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        Counted.looks += 1
        return str.__hash__(self)


@pytest.mark.parametrize("part", ["inputs", "outputs", "parameters"])
def test_each_name_is_looked_at_a_few_times(part: str) -> None:
    """No name is compared with all others, even if there are many and the last one repeats."""
    names = [Counted(f"n{number}") for number in range(5000)]
    sent = [*names, Counted("n4999")]
    inputs = [tensor(name) for name in sent] if part == "inputs" else [tensor()]
    outputs = [(name, NO_PARAMETERS) for name in sent if part == "outputs"]
    parameters: Parameters = NO_PARAMETERS
    if part == "parameters":
        parameters = dict.fromkeys(names, 1)
    Counted.looks = 0
    with nullcontext() if part == "parameters" else pytest.raises(InvalidInput, match="repeats"):
        make_request(inputs, outputs, parameters=parameters)
    assert Counted.looks < 10 * len(names)


@pytest.mark.parametrize(
    ("datatype", "values", "expected"),
    [
        ("FP32", [1.5, 2.5], [1.5, 2.5]),
        ("INT8", [-128, 127], [-128, 127]),
        ("BOOL", [True, False], [True, False]),
        ("BYTES", [b"a", "\u00e4".encode()], ["a", "\u00e4"]),
        ("BYTES", [b"a\0", b"\xff\0"], [b"a\0", b"\xff\0"]),
    ],
)
def test_typed_values_become_an_array(datatype: str, values: list[Any], expected: Any) -> None:
    """Flat values become an array of the given shape."""
    sent = InputTensor("x", datatype, [2, 1], NO_PARAMETERS, values=values)
    array = decode_input(TensorSpec("x", datatype, None), sent)
    assert array.reshape(-1).tolist() == expected
    assert array.shape == (2, 1)


@pytest.mark.parametrize(
    ("datatype", "values", "says"),
    [
        ("INT8", [1, 128], "'x' must be INT8, got 128 at [0][1], which is out of range"),
        ("UINT16", [1, 65536], "got 65536 at [0][1], which is out of range"),
        (
            "BYTES",
            [b"ab", b"\xff"],
            "'x' has elements that are not UTF-8 and differ in length",
        ),
        ("FP32", [1.0], "'x' of shape [1, 2] needs 2 elements, got 1"),
        ("BYTES", [b"a"], "needs 2 elements, got 1"),
    ],
)
def test_typed_values_that_do_not_fit_are_told(datatype: str, values: list[Any], says: str) -> None:
    """They get the sentences of JSON."""
    sent = InputTensor("x", datatype, [1, 2], NO_PARAMETERS, values=values)
    with pytest.raises(InvalidInput) as refused:
        decode_input(TensorSpec("x", datatype, None), sent)
    assert says in str(refused.value)


def test_nothing_is_converted() -> None:
    """A datatype that is not the model's is refused with both."""
    with pytest.raises(
        InvalidInput, match="'x' is INT64, but the request declares datatype 'FP32'"
    ):
        decode_input(TensorSpec("x", "INT64", None), tensor())


def test_typed_floats_may_be_anything() -> None:
    """NaN and infinities, which JSON lacks, are accepted."""
    sent = InputTensor("x", "FP32", [3], NO_PARAMETERS, values=[np.nan, np.inf, -np.inf])
    assert np.isnan(decode_input(TensorSpec("x", "FP32", None), sent)[0])
