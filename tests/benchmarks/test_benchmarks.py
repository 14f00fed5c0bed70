"""The benchmark's models and tables hold together; nothing here asserts a time."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from xml.etree import ElementTree

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from benchmarks import models, report, summary
from benchmarks.measure import Found
from benchmarks.openloop import is_whole
from benchmarks.workloads import (
    WORKLOADS,
    Workload,
    ask_binary,
    ask_cohort,
    ask_simply,
    ask_v2,
    read_answer,
)


@pytest.mark.parametrize(
    "build", [models.mlp, lambda: models.forest(trees=5)], ids=["mlp", "forest"]
)
def test_small_models_run(build: Callable[[], onnx.ModelProto]) -> None:
    """Each answers a batch of its workload's requests, row for row."""
    session = ort.InferenceSession(build().SerializeToString())
    requests = Workload("small", "mlp").requests()
    together = np.concatenate([one["x"] for one in requests])
    first = session.run(None, {"x": together})[0]
    assert len(first) == len(requests)
    assert len(np.unique(first, axis=0)) > 1


def test_resnet_costs_what_resnet_50_costs() -> None:
    """It has 25.6 million weights and 4.1 thousand million multiplications."""
    model = onnx.shape_inference.infer_shapes(models.resnet50())
    shapes = {
        one.name: [axis.dim_value for axis in one.type.tensor_type.shape.dim]
        for one in model.graph.value_info
    }
    weights = {one.name: one.dims for one in model.graph.initializer}
    products = sum(
        int(np.prod(weights[node.input[1]]) * np.prod(shapes[node.output[0]][2:]))
        for node in model.graph.node
        if node.op_type in {"Conv", "Gemm"}
    )
    assert products == pytest.approx(4.1e9, rel=0.02)
    assert sum(int(np.prod(one)) for one in weights.values()) == pytest.approx(25.5e6, rel=0.01)


def test_every_form_carries_the_request() -> None:
    """JSON forms and the binary one say the same; lengths are those of the issue."""
    for workload in WORKLOADS:
        inputs = workload.requests()[0]
        for ask in (ask_simply, ask_cohort, ask_v2, ask_binary):
            call = ask(workload, inputs)
            size = call.headers.get("Inference-Header-Content-Length")
            json.loads(call.body[: int(size)] if size else call.body)
    lengths = [one["input_ids"].shape[1] for one in WORKLOADS[-1].requests()]
    assert min(lengths) >= 8
    assert max(lengths) <= 128


def test_answers_are_read_in_every_form() -> None:
    """The first output is read as numbers."""
    right = np.array([[1.5, 2.5]], "f4")
    head = (
        b'{"outputs":[{"name":"y","datatype":"FP32","shape":[1,2],'
        b'"parameters":{"binary_data_size":8}}]}'
    )
    answers: list[tuple[dict[str, str], bytes]] = [
        ({}, b'{"prediction":[[1.5,2.5]]}'),
        ({}, b'{"outputs":{"y":[[1.5,2.5]]}}'),
        ({}, b'{"outputs":[{"name":"y","datatype":"FP32","shape":[1,2],"data":[1.5,2.5]}]}'),
        ({"inference-header-content-length": str(len(head))}, head + right.tobytes()),
    ]
    for headers, body in answers:
        np.testing.assert_array_equal(read_answer(headers, body), right)


def test_answer_in_piecesis_whole_at_its_end() -> None:
    """The open loop's generator waits for the last byte."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"
    assert [is_whole(answer[:size]) for size in (10, len(answer) - 1, len(answer))] == [
        False,
        False,
        True,
    ]


def _found() -> Found:
    found = Found()
    for server, rate in (("cohort", 50_000.0), ("tutorial", 4_000.0), ("litserve", 1_000.0)):
        for number in range(3):
            found.rounds.append({
                "workload": "mlp", "server": server, "connections": 64, "round": number,
                "rate": rate + number, "p50": 64 / rate, "p99": 128 / rate, "cpu_us": 1e6 / rate,
                "refused": 0, "errors": 0, "requests": int(rate),
                "hot": 1.0 if server == "cohort" else None,
            })  # fmt: skip
    found.failed["mlp"] = {"mlserver": "not installed: no | network"}
    return found


def test_report_renders_what_was_measured_and_says_what_was_not() -> None:
    """The table has medians, ratios and targets; a failed server has its reason; plots are SVG."""
    found = _found()
    assert json.loads(json.dumps(asdict(found)))
    row = next(row for row in report.rows(found) if row[2] == "cohort")
    assert row[3] == "50,001"
    assert "12.50" in row
    reached = {one.work: one.reached for one in summary.targets(found)}
    assert reached["MLP, 64 connections, req/s against the tutorial server"] is True
    assert reached["MLP, 64 connections, CPU per request"] is False
    assert reached["MLP at 60 % of capacity, open loop, p99"] is None
    text = "\n".join(report.text(found, ["mlp"]))
    assert "mlserver: not installed" in text
    lines = [line for line in text.splitlines() if line.startswith("| mlp")]
    assert len({line.count("|") for line in lines}) == 1
    for _, svg in report.drawings(found):
        ElementTree.fromstring(svg)
