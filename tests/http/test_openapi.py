"""The contents of /openapi.json for the loaded models, and of /docs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from cohort.errors import CohortError, ConfigInvalid, LoadFailed, RemoteFailed
from cohort.http.errors import HTTP_STATUS
from cohort.http.openai.error_body import PATHS
from cohort.http.openapi.schemas import element
from cohort.repository import Example, Manifest, dump_manifest
from cohort.tensors import DATATYPES
from tests import onnx_models
from tests.e2e.processes import MODELS, ROOT, Cohort, cohort
from tests.http.references import resolved


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """The bundled models, one of each datatype, and some whose inputs are of special kinds."""
    folder = tmp_path_factory.mktemp("openapi")
    models = folder / "models"
    shutil.copytree(MODELS, models)
    for name, model in {
        **{one.name: onnx_models.identity(one.name) for one in DATATYPES if one.numpy_native},
        "two.inputs": onnx_models.two_inputs(),
        "unknown-rank": onnx_models.unknown_rank(),
        "scalar": onnx_models.scalar(),
        "nothing": onnx_models.no_inputs(),
        "sequence": onnx_models.sequence(),
        "sequence.and.tensor": onnx_models.sequence_and_tensor(),
        "picture": onnx_models.identity("FP32", ["N", 3, 224, 224]),
        "pair": onnx_models.two_inputs(width=1000),
        "long.text": onnx_models.identity("BYTES", ["N", 5000]),
    }.items():
        onnx_models.save(model, models / name / "1/model.onnx")
    with cohort(models, folder) as server:
        yield server


@pytest.fixture(scope="module")
def document(server: Cohort) -> dict[str, Any]:
    """The OpenAPI document of `server`."""
    document: dict[str, Any] = httpx.get(server.url + "/openapi.json").raise_for_status().json()
    return document


def posts(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every address that accepts a body, with its content."""
    for path, item in document["paths"].items():
        if "requestBody" in item.get("post", {}):
            parameters = item["post"].get("parameters", [])
            values = {one["name"]: one.get("example") for one in parameters}
            yield path.format(**values), item["post"]["requestBody"]["content"]["application/json"]


def test_every_example_works(server: Cohort, document: dict[str, Any]) -> None:
    """Each one gets 200 when it is sent unchanged, also on templated paths."""
    sent = 0
    with httpx.Client(base_url=server.url) as client:
        for path, content in posts(document):
            given = content.get("examples", {}).values()
            shown = [one["value"] for one in given if "shortened" not in one.get("summary", "")]
            shown += [content["example"]] if "example" in content else []
            for body in shown:
                answer = client.post(path, json=body)
                assert answer.status_code == httpx.codes.OK, (path, answer.text)
                sent += 1
    assert sent > 50


def test_example_responses_are_what_is_answered(server: Cohort, document: dict[str, Any]) -> None:
    """Each one is the answer to the request's example of that name, but for the time it took."""
    seen = 0
    with httpx.Client(base_url=server.url) as client:
        for path, item in document["paths"].items():
            if "examples" not in str(item.get("post", {}).get("responses", {}).get("200", {})):
                continue
            answers = item["post"]["responses"]["200"]["content"]["application/json"]["examples"]
            asked = item["post"]["requestBody"]["content"]["application/json"]["examples"]
            for name, answer in answers.items():
                found = client.post(path, json=asked[name]["value"]).json()
                shown = dict(answer["value"])
                for one in (found, shown):
                    one.pop("inference_time_ms", None)
                assert found == shown, (path, name)
                seen += 1
    assert seen > 50


def test_example_responses_have_the_labels_that_are_configured(tmp_path: Path) -> None:
    """They are the labels in an answer to a plain request."""
    folder = tmp_path / "models/mlp"
    onnx_models.save(onnx_models.mlp(), folder / "1/model.onnx")
    config = """
    outputs: {y: {labels: [cat, dog, eel], top: 2}}
    example: {x: [[1, 2, 3, 4.5]]}
    """
    (folder / "config.yaml").write_text(config)
    with cohort(tmp_path / "models", tmp_path) as server:
        document = httpx.get(server.url + "/openapi.json").json()
        for form in ("/models/mlp/predict", "/v1/models/mlp:predict", "/v2/models/mlp/infer"):
            operation = document["paths"][form]["post"]
            asked = operation["requestBody"]["content"]["application/json"]["examples"]
            answers = operation["responses"]["200"]["content"]["application/json"]["examples"]
            assert answers
            for name, answer in answers.items():
                found = httpx.post(server.url + form, json=asked[name]["value"]).json()
                assert "cat" in str(answer["value"]) or "dog" in str(answer["value"])
                for one in (found, answer["value"]):
                    one.pop("inference_time_ms", None)
                assert found == answer["value"]


def test_every_model_has_paths_with_its_own_tensors(document: dict[str, Any]) -> None:
    """Names, datatypes and shapes are the model's; each version has its own, the default two."""
    content = dict(posts(document))["/models/iris/predict"]
    by_name, simple, rows = resolved(document, content["schema"])["oneOf"]
    row = rows["properties"]["rows"]["items"]
    assert row["required"][0] == "sepal length (cm)"
    assert row["properties"]["sepal length (cm)"]["type"] == "number"
    features = by_name["properties"]["inputs"]["properties"]["features"]
    assert features == simple["properties"]["input"]
    assert features["description"] == "FP32 [N, 4]"
    assert features["items"]["minItems"] == features["items"]["maxItems"] == 4
    assert by_name["properties"]["outputs"]["items"]["enum"] == ["label", "probabilities"]
    assert {path for path, _ in posts(document) if "digits" in path and path[:7] == "/models"} == {
        "/models/digits/predict",
        "/models/digits/versions/1/predict",
        "/models/digits/versions/2/predict",
    }


def test_the_open_inference_paths_have_them_too(document: dict[str, Any]) -> None:
    """An input's name and datatype are the model's, its shape has the dimensions that are fixed."""
    content = dict(posts(document))["/v2/models/iris/infer"]
    features = resolved(document, content["schema"])["properties"]["inputs"]["items"]
    assert features["properties"]["name"] == {"const": "features"}
    assert features["properties"]["datatype"] == {"const": "FP32"}
    assert features["properties"]["shape"]["prefixItems"][1]["minimum"] == 4
    assert "/v2/models/digits/versions/1/infer" in document["paths"]


def test_routes_stay_documented_for_any_model(document: dict[str, Any]) -> None:
    """The templated paths are next to the models' paths, with their parameters."""
    for path in ("/models/{model}/predict", "/v1/models/{model}/versions/{version}:predict"):
        parameters = document["paths"][path]["post"]["parameters"]
        assert [one["name"] for one in parameters] == re.findall(r"{(\w+)}", path)
        assert all(one["required"] for one in parameters)


@pytest.mark.skipif(shutil.which("curl") is None, reason="the description's command is curl's")
@pytest.mark.parametrize("model", ["picture", "pair", "long.text"])
def test_calls_to_copy_work(
    server: Cohort, document: dict[str, Any], tmp_path: Path, model: str
) -> None:
    """The description of a model with large inputs has a command and a program that run as is."""
    about = document["paths"][f"/models/{model}/predict"]["post"]["description"]
    (command,) = re.findall(r"```sh\n(.*?)```", about, re.DOTALL)
    (program,) = re.findall(r"```python\n(.*?)```", about, re.DOTALL)
    ran = run(["sh", "-euc", command], tmp_path)
    answer = tmp_path / "answer.json"
    response = json.loads(answer.read_text() if answer.exists() else ran)
    assert response["model_name"] == model
    assert {str(one["data"][0]) for one in response["outputs"]} <= {"0.0", "-1", ""}
    assert "[" in run([sys.executable, "-c", program], tmp_path)


def run(command: list[str], folder: Path) -> str:
    """Return the output of a program that must succeed."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_model_can_be_described_alone(server: Cohort) -> None:
    """`?model=` gives its paths and no others'; an unknown model gets 404."""
    document = httpx.get(server.url + "/openapi.json?model=iris").raise_for_status().json()
    own = {path.split("/")[2] for path in document["paths"] if path.startswith("/models/")}
    assert own == {"{model}", "iris"}
    missing = httpx.get(server.url + "/openapi.json?model=nobody")
    assert (missing.status_code, missing.json()["code"]) == (404, "ModelNotFound")


def test_operations_have_names_of_their_own(document: dict[str, Any]) -> None:
    """Clients made from the document need them unique."""
    names = [one["operationId"] for item in document["paths"].values() for one in item.values()]
    assert len(names) == len(set(names))


def test_errors_are_documented_as_they_are(document: dict[str, Any]) -> None:
    """OpenAI's routes have its form, and all others one form, without FastAPI's 422."""
    for path, item in document["paths"].items():
        form = "OpenAI" if path in PATHS else ""
        for operation in item.values():
            assert "422" not in operation["responses"]
            for status, response in operation["responses"].items():
                if int(status) >= 400:
                    assert response == {"$ref": f"#/components/responses/{form}{status}"}
                    error = document["components"]["responses"][f"{form}{status}"]
                    schema = error["content"]["application/json"]["schema"]
                    assert schema == {"$ref": f"#/components/schemas/{form}Error"}
    for kind, status in HTTP_STATUS.items():
        if kind.__name__ != "Cancelled":
            assert f"| {kind.__name__} | {int(status)} |" in document["info"]["description"]


@pytest.mark.parametrize("datatype", DATATYPES, ids=lambda one: str(one.name))
def test_every_datatype_has_a_schema(datatype: Any) -> None:
    """Text, booleans, whole numbers in their range, and numbers each have one."""
    schema = element(datatype.name)
    kinds = {"text": "string", "bool": "boolean", "int": "integer", "float": "number"}
    assert schema["type"] == kinds[datatype.kind]
    if datatype.kind == "int":
        told = schema.get("format")
        if "maximum" in schema:
            told = schema["maximum"] - schema["minimum"]
        assert told in {"int64", 2**datatype.bits - 1}


def test_the_document_follows_models_that_come_and_go(tmp_path: Path) -> None:
    """A model's paths appear when it is loaded and go when it goes."""
    models = tmp_path / "models"
    onnx_models.save(onnx_models.mlp(), models / "first/1/model.onnx")
    with cohort(models, tmp_path) as server:

        def own() -> set[str]:
            paths = httpx.get(server.url + "/openapi.json").json()["paths"]
            return {path.split("/")[2] for path in paths if path.startswith("/models/")}

        assert own() == {"{model}", "first"}
        onnx_models.save(onnx_models.mlp(), tmp_path / "new/1/model.onnx")
        (tmp_path / "new").rename(models / "second")
        server.wait_for("/v2/models/second/ready")
        assert own() == {"{model}", "first", "second"}
        shutil.rmtree(models / "first")
        server.wait_for("/models/first", httpx.codes.NOT_FOUND)
        assert own() == {"{model}", "second"}


def test_published_examples_come_first(tmp_path: Path) -> None:
    """What the version's manifest has is shown instead of made-up inputs."""
    folder = tmp_path / "models/mlp/1"
    onnx_models.save(onnx_models.mlp(), folder / "model.onnx")
    example = Example({"x": np.array([[1, 2, 3, 4.5]], np.float32)}, {})
    (folder / "manifest.json").write_bytes(dump_manifest(Manifest(1, examples=(example,))))
    with cohort(tmp_path / "models", tmp_path) as server:
        document = httpx.get(server.url + "/openapi.json").json()
        content = dict(posts(document))["/models/mlp/predict"]
        assert content["example"] == {"inputs": {"x": [[1.0, 2.0, 3.0, 4.5]]}}


def test_examples_that_are_no_json_are_left_out(tmp_path: Path) -> None:
    """An example with NaN is left out, and the rest of the document stays."""
    folder = tmp_path / "models/mlp/1"
    onnx_models.save(onnx_models.mlp(), folder / "model.onnx")
    example = Example({"x": np.full((1, 4), np.nan, np.float32)}, {})
    (folder / "manifest.json").write_bytes(dump_manifest(Manifest(1, examples=(example,))))
    with cohort(tmp_path / "models", tmp_path) as server:
        document = httpx.get(server.url + "/openapi.json").raise_for_status().json()
        assert all("example" not in content for _, content in posts(document))
        assert all("examples" not in content for _, content in posts(document))


def test_docs_need_no_other_server(server: Cohort) -> None:
    """The page and all that it loads come from here."""
    page = httpx.get(server.url + "/docs").raise_for_status().text
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert any(url.endswith(".js") for url in loaded)
    for url in loaded:
        if not url.startswith("data:"):
            assert url.startswith("./"), url
            assert httpx.get(f"{server.url}/{url}").status_code == httpx.codes.OK


def test_every_error_has_a_status() -> None:
    """No kind of error that a caller may see falls out of the table."""

    def kinds(kind: type[CohortError]) -> Iterator[type[CohortError]]:
        yield kind
        for below in kind.__subclasses__():
            yield from kinds(below)

    operators = (ConfigInvalid, LoadFailed, RemoteFailed)
    for kind in kinds(CohortError):
        # commands have exit codes
        served = not kind.__module__.startswith(("cohort_prepare", "cohort.scoring"))
        if served and kind is not CohortError and not issubclass(kind, operators):
            assert any(one in HTTP_STATUS for one in kind.__mro__), kind


def test_the_reference_has_every_error() -> None:
    """docs/reference/rest.md gives each code the status that the server gives it."""
    page = (ROOT / "docs/reference/rest.md").read_text(encoding="utf-8")
    rows = {
        code: int(status)
        for codes, status in re.findall(r"^\| ([\w, ]+) \| (\d{3}) \|", page, re.MULTILINE)
        for code in codes.split(", ")
    }
    told = {kind.__name__: int(status) for kind, status in HTTP_STATUS.items()}
    assert {**told, "ModelNotFound": 404, "VersionNotFound": 404} == {**rows, "Cancelled": 503}
