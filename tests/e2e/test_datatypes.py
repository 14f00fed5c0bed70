"""Every datatype and shape over every form, and what cannot be transportable, on a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import numpy as np
import pytest
from onnx import helper

from tests import onnx_models
from tests.e2e.processes import Cohort, cohort, free_port
from tools.conformance.clients import Array, Clients, Refused

FORMS = ("V2 binary", "V2 JSON", "gRPC")
RANK = 64  # numpy's limit


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """A server with a model per datatype that gives back what it gets, and two with sequences."""
    folder = tmp_path_factory.mktemp("datatypes")
    models = {
        "sequence": onnx_models.sequence(),
        "both": onnx_models.sequence_and_tensor(),
        "targets": onnx_models.several_targets(),
        "deep": onnx_models.untouched("FP32", [None] * RANK),
    }
    for datatype in onnx_models.ELEMENT_TYPES:
        models[datatype] = onnx_models.untouched(datatype, ["N", "M"])
        models[f"{datatype}-scalar"] = onnx_models.untouched(datatype, [])
    for name, model in models.items():
        onnx_models.save(model, folder / "models" / name / "1" / "model.onnx")
    with cohort(folder / "models", folder, watch_seconds=0, grpc_port=free_port()) as started:
        yield started


@pytest.fixture(scope="module")
def clients(server: Cohort) -> Iterator[Clients]:
    """Clients that share no code with the server."""
    made = Clients(server.url, server.grpc)
    yield made
    made.close()


def _values(datatype: str, shape: tuple[int, ...]) -> Array:
    dtype = helper.tensor_dtype_to_np_dtype(onnx_models.ELEMENT_TYPES[datatype])
    cycle = [1, 2, 0.5, 4] if datatype == "FP8E8M0" else [0, 1, 1, 1, 0]
    numbers: Array = np.resize(cycle, shape)
    return numbers.astype(str).astype(object) if dtype.kind == "O" else numbers.astype(dtype)


def _same(one: Array, other: Array) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and bool((one == other).all())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("datatype", onnx_models.ELEMENT_TYPES)
def test_every_datatype_goes_both_ways(clients: Clients, datatype: str, form: str) -> None:
    """Rows of even and odd lengths, no rows, empty rows and scalars come back as they went."""
    ask = clients.forms[form]
    for shape in ((2, 3), (1, 1), (3, 5), (0, 3), (2, 0)):
        array = _values(datatype, shape)
        assert _same(ask(datatype, {"x": array}, {"x": datatype})["x"], array)
    scalar = _values(datatype, ())
    assert _same(ask(f"{datatype}-scalar", {"x": scalar}, {"x": datatype})["x"], scalar)


@pytest.mark.parametrize("form", FORMS)
def test_as_many_dimensions_as_numpy_has(clients: Clients, form: str) -> None:
    """The highest rank goes both ways."""
    ask = clients.forms[form]
    array = np.ones([1] * RANK, "f4")
    assert _same(ask("deep", {"x": array}, {"x": "FP32"})["x"], array)


def test_one_dimension_too_many(server: Cohort) -> None:
    """A rank beyond the limit is the caller's mistake."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1] * (RANK + 1), "data": [1]}
    answer = httpx.post(f"{server.url}/v2/models/deep/infer", json={"inputs": [tensor]})
    assert (answer.status_code, f"{RANK + 1} dimensions" in answer.json()["error"]) == (400, True)


@pytest.mark.parametrize("datatype", ["INT4", "FP8E5M2"])
@pytest.mark.parametrize("form", FORMS)
def test_wrong_sizes_and_ranges_are_told(clients: Clients, datatype: str, form: str) -> None:
    """What does not fit is refused, naming the input."""
    wide = np.array([[1e6]] if datatype == "FP8E5M2" else [[9]], "f4").astype("i4")
    with pytest.raises(Refused, match=r"400|INVALID_ARGUMENT") as refused:
        clients.forms[form](datatype, {"x": wide}, {"x": datatype})
    assert "'x'" in str(refused.value)


# ---- sequences, with tensors and alone


def test_metadata_names_what_cannot_be_carried(server: Cohort) -> None:
    """An output that is not a tensor is listed, with ONNX Runtime's name for its kind."""
    for path in ("/v2/models/both", "/models/both"):
        assert "seq(tensor(float))" in httpx.get(server.url + path).text


def test_unnamed_outputs_are_those_that_can_be_carried(server: Cohort, clients: Clients) -> None:
    """A request that names no output gets the tensors, over every route."""
    x = np.ones((2, 3), "f4")
    for ask in clients.forms.values():
        outputs = ask("both", {"x": x}, {"x": "FP32"})
        assert list(outputs) == ["y"]
        assert _same(outputs["y"], x)
    simple = httpx.post(f"{server.url}/models/both/predict", json={"input": x.tolist()})
    assert simple.json()["prediction"] == x.tolist()
    served = httpx.post(f"{server.url}/v1/models/both:predict", json={"instances": x.tolist()})
    assert served.json()["predictions"] == x.tolist()


@pytest.mark.parametrize("model", ["both", "sequence"])
@pytest.mark.parametrize("route", ["/v2/models/{}/infer", "/models/{}/predict"])
def test_asking_for_a_sequence_is_refused(server: Cohort, model: str, route: str) -> None:
    """The sentence names the output and its kind."""
    simple = {"inputs": {"x": [[1, 2, 3]]}, "outputs": ["rows"]}
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}
    v2 = {"inputs": [tensor], "outputs": [{"name": "rows"}]}
    body = v2 if "v2" in route else simple
    answer = httpx.post(server.url + route.format(model), json=body)
    assert answer.status_code == 400
    assert "'rows' is seq(tensor(float)), which cannot be sent" in answer.json()["error"]


def test_tensors_of_a_sequence_are_outputs_of_their_own(server: Cohort, clients: Clients) -> None:
    """Every route returns them by row, and their rows share runs like those of any output."""
    described = httpx.get(f"{server.url}/models/targets").json()["versions"][0]
    assert [one["name"] for one in described["outputs"]] == ["y", "scores_0", "scores_1"]
    assert described["outputs"][1]["part_of"] == "scores"
    assert "rows are independent" in described["batching"]["reason"] or described["batching"]["on"]
    x = np.arange(6, dtype="f4").reshape(2, 3)
    for ask in clients.forms.values():
        outputs = ask("targets", {"x": x}, {"x": "FP32"})
        assert list(outputs) == ["y", "scores_0", "scores_1"]
        assert _same(outputs["scores_0"], x)
        assert _same(outputs["scores_1"], 2 * x)
    v1 = httpx.post(f"{server.url}/v1/models/targets:predict", json={"instances": x.tolist()})
    assert v1.json()["predictions"][1]["scores_1"] == (2 * x[1]).tolist()


@pytest.mark.parametrize("binary", [False, True])
def test_the_sequence_by_name_is_all_of_its_tensors(server: Cohort, binary: bool) -> None:
    """A request that names it as the model's file does gets what is in it."""
    simple = {"inputs": {"x": [[1, 2, 3]]}, "outputs": ["scores"]}
    found = httpx.post(f"{server.url}/models/targets/predict", json=simple).json()["outputs"]
    assert found == {"scores_0": [[1, 2, 3]], "scores_1": [[2, 4, 6]]}
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}
    wanted = {"name": "scores", "parameters": {"binary_data": binary}}
    body = {"inputs": [tensor], "outputs": [wanted]}
    answer = httpx.post(f"{server.url}/v2/models/targets/infer", json=body)
    length = int(answer.headers.get("Inference-Header-Content-Length", len(answer.content)))
    outputs = json.loads(answer.content[:length])["outputs"]
    assert [one["name"] for one in outputs] == ["scores_0", "scores_1"]
    twice = {"inputs": [tensor], "outputs": [wanted] * 3}
    again = httpx.post(f"{server.url}/v2/models/targets/infer", json=twice)
    assert again.status_code == 400
    many = {**simple, "outputs": ["scores"] * 100_000}
    assert httpx.post(f"{server.url}/models/targets/predict", json=many).status_code == 400


def test_model_of_sequences_alone_refuses(clients: Clients) -> None:
    """The model has no output to return, so a request is refused."""
    for ask in clients.forms.values():
        with pytest.raises(Refused, match=r"400|INVALID_ARGUMENT") as refused:
            ask("sequence", {"x": np.ones((1, 3), "f4")}, {"x": "FP32"})
        assert "seq(tensor(float))" in str(refused.value)
