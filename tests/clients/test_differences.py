"""Differences from Triton: Cohort's column of the table in docs/reference/v2.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import pytest

from tests.e2e.processes import Cohort
from tests.waiting import PATIENCE

Body = Mapping[str, Any]


def tensor(name: str, values: Sequence[object], shape: Sequence[int]) -> dict[str, Any]:
    return {"name": name, "datatype": "FP32", "shape": list(shape), "data": list(values)}


A, B = tensor("a", [5, 7], (1, 2)), tensor("b", [1, 2], (1, 2))
MANY = [tensor(name, [1] * 2000, (1000, 2)) for name in "ab"]
NONE = [tensor(name, [], (0, 2)) for name in "ab"]
SHARED = {"shared_memory_region": "r", "shared_memory_byte_size": 8}
BAD_BYTES = {"name": "text", "datatype": "BYTES", "shape": [1, 1]}

ANSWERED: Mapping[str, tuple[Body, Body]] = {
    "more rows than max_batch_size": ({"inputs": MANY}, {}),
    "no rows": ({"inputs": NONE}, {}),
    "an id that is a number": ({"id": 7, "inputs": [A, B]}, {"id": "7"}),
    "a timeout in a string": ({"inputs": [A, B], "parameters": {"timeout": "600000000"}}, {}),
    "priority and sequences": (
        {"inputs": [A, B], "parameters": {"priority": "x", "sequence_id": 5, "mine": [1]}},
        {},
    ),
}

REFUSED: Mapping[str, tuple[str, bytes | Body, int, str]] = {
    "NaN": (
        "pair/infer",
        json.dumps({"inputs": [A, B]}).replace("5", "NaN").encode(),
        400,
        "missing values",
    ),
    "not JSON": ("pair/infer", b"nope", 400, "JSON"),
    "no inputs": ("pair/infer", {}, 400, "inputs is missing"),
    "text for numbers": ("pair/infer", {"inputs": [tensor("a", ["5", 7], (1, 2)), B]}, 400, "'5'"),
    "too few elements": ("pair/infer", {"inputs": [tensor("a", [5], (1, 2)), B]}, 400, "needs 2"),
    "an output twice": (
        "pair/infer",
        {"inputs": [A, B], "outputs": [{"name": "sum"}, {"name": "sum"}]},
        400,
        "outputs[1].name repeats 'sum'",
    ),
    "a time that is over": (
        "pair/infer",
        {"inputs": [A, B], "parameters": {"timeout": 1}},
        504,
        "no response within",
    ),
    "shared memory": (
        "pair/infer",
        {"inputs": [{**{key: A[key] for key in A if key != "data"}, "parameters": SHARED}, B]},
        400,
        "inputs[0].parameters.shared_memory_region: shared memory is off",
    ),
    "an unknown model": ("nobody/infer", {"inputs": [A, B]}, 404, "model 'nobody' not found"),
    "generate": ("pair/generate", {"text_input": "x"}, 400, "is not a language model"),
    "a body over the limit": ("pair/infer", bytes(5 << 20), 413, "larger than"),
}


def ask(server: Cohort, path: str, body: bytes | Body) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body)
    return httpx.post(f"{server.url}/v2/models/{path}", content=content, timeout=PATIENCE)


@pytest.mark.parametrize("case", ANSWERED)
def test_what_triton_refuses_or_uses_is_answered(server: Cohort, case: str) -> None:
    """The model answers it like any other request."""
    body, has = ANSWERED[case]
    answer = ask(server, "pair/infer", body)
    assert answer.status_code == 200, answer.text
    assert has.items() <= answer.json().items()


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_says_why(server: Cohort, case: str) -> None:
    """The answer has the status of the table, and a code next to the sentence."""
    path, body, status, says = REFUSED[case]
    answer = ask(server, path, body)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json")
    assert says in answer.json()["error"]
    assert answer.json()["code"]


def test_outputs_come_in_the_order_of_the_request(server: Cohort) -> None:
    """Triton gives the model's."""
    names = ["difference", "sum"]
    body = {"inputs": [A, B], "outputs": [{"name": name} for name in names]}
    outputs = ask(server, "pair/infer", body).json()["outputs"]
    assert [one["name"] for one in outputs] == names


@pytest.mark.parametrize("path", ["trace/setting", "logging"])
def test_routes_that_are_not_here_are_404(server: Cohort, path: str) -> None:
    """Triton's routes that Cohort lacks get NotFound."""
    answer = httpx.get(f"{server.url}/v2/{path}")
    assert (answer.status_code, answer.json()["code"]) == (404, "NotFound")


def test_bytes_that_are_no_text_go_in_and_not_out(server: Cohort) -> None:
    """The output is refused, not the request, and the error states why."""
    head = {"inputs": [{**BAD_BYTES, "parameters": {"binary_data_size": 6}}]}
    text = json.dumps(head)
    answer = httpx.post(
        f"{server.url}/v2/models/strings/infer",
        content=text.encode() + b"\x02\0\0\0\xff\xfe",
        headers={"inference-header-content-length": str(len(text))},
    )
    assert (answer.status_code, "output is not UTF-8" in answer.text) == (400, True)
