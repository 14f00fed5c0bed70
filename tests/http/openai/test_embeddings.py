"""`/v1/embeddings`, against the real process with small encoders."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from tests import onnx_models, text_models
from tests.e2e.processes import Cohort, cohort
from tests.waiting import PATIENCE

CONFIG = "inputs: {text: {tokenizer: tokenizer.json, max_length: 8}}\n"
PAIRS = "inputs: {text: {tokenizer: tokenizer.json, max_length: 8, pairs: true}}\n"
NAMES = "labels: [a, b, c]\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """Serves an encoder with a tokenizer, one with a cache, and other models."""
    folder = tmp_path_factory.mktemp("embeddings")
    models = folder / "models"
    text_models.save(models / "encoder", CONFIG)
    text_models.save(models / "cached", f"{CONFIG}cache: {{max_mb: 1}}\n")
    text_models.save(models / "pairs", PAIRS)
    text_models.save(models / "classes", CONFIG + NAMES)
    onnx_models.save(text_models.classifier(types=True), models / "ids/1/model.onnx")
    onnx_models.save(text_models.classifier(masked=False), models / "even/1/model.onnx")
    onnx_models.save(onnx_models.two_inputs(), models / "tensors/1/model.onnx")
    with cohort(models, folder) as started:
        yield started


@pytest.fixture(scope="module")
def client(server: Cohort) -> Iterator[httpx.Client]:
    """One client for all tests."""
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
        yield client


def embed(client: httpx.Client, given: object, **options: object) -> httpx.Response:
    """Ask for embeddings of `given`."""
    body = {"model": "encoder", "input": given, **options}
    return client.post("/v1/embeddings", json=body)


def vectors(response: httpx.Response) -> Any:
    """Return the vectors of an answer in OpenAI's form."""
    assert response.status_code == 200, response.text
    document = response.json()
    assert document["object"] == "list"
    assert [one["index"] for one in document["data"]] == list(range(len(document["data"])))
    assert {one["object"] for one in document["data"]} == {"embedding"}
    return np.array([one["embedding"] for one in document["data"]], np.float32)


def predicted(client: httpx.Client, model: str, **inputs: object) -> Any:
    """Return the model's output over /predict."""
    answer = client.post(f"/models/{model}/predict", json={"inputs": inputs})
    return np.array(answer.json()["outputs"]["logits"], np.float32)


def test_vectors_are_the_output_as_it_is(client: httpx.Client) -> None:
    """They equal the model's own output, in the order of the texts."""
    texts = ["good", "the very very bad films", "漢字"]
    answer = embed(client, texts)
    assert np.array_equal(vectors(answer), predicted(client, "encoder", text=texts))
    assert answer.json()["model"] == "encoder"
    assert np.array_equal(vectors(embed(client, "good")), vectors(answer)[:1])


def test_base64_has_the_same_numbers(client: httpx.Client) -> None:
    """The bytes are FP32, little-endian, as the official client reads them."""
    plain = vectors(embed(client, ["good", "bad"], encoding_format="float"))
    packed = embed(client, ["good", "bad"], encoding_format="base64").json()["data"]
    read = [np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in packed]
    assert np.array_equal(read, plain)


def test_usage_counts_the_tokens_of_the_tokenizer(client: httpx.Client) -> None:
    """[CLS] and [SEP] count; ids beyond max_length do not; a cached answer counts as well."""
    for model in ("encoder", "cached", "cached"):
        usage = embed(client, ["good film", "very " * 50], model=model).json()["usage"]
        assert usage == {"prompt_tokens": 4 + 8, "total_tokens": 12}


def test_token_ids_are_for_models_that_accept_them(client: httpx.Client) -> None:
    """Shorter lists are padded under the mask."""
    answer = embed(client, [[4, 5, 6], [7]], model="ids")
    rows = [
        predicted(client, "ids", input_ids=[ids], attention_mask=[[1] * len(ids)],
                  token_type_ids=[[0] * len(ids)])[0]
        for ids in ([4, 5, 6], [7])
    ]  # fmt: skip
    assert np.allclose(vectors(answer), rows)
    assert answer.json()["usage"]["prompt_tokens"] == 4
    assert vectors(embed(client, [4, 5], model="even")).shape == (1, 3)


def test_long_inputs_are_answered(client: httpx.Client) -> None:
    """The limit of inputs is OpenAI's."""
    answer = embed(client, ["a very good film"] * 2048, dimensions=3, user="u")
    assert vectors(answer).shape == (2048, 3)


@pytest.mark.parametrize(
    ("body", "parameter", "message"),
    [
        ({"input": None}, "input", "'input' is missing"),
        ({"input": ""}, "input", "'input' must not be empty"),
        ({"input": []}, "input", "'input' must not be empty"),
        ({"input": ["a", ""]}, "input", "'input' must not be empty"),
        ({"input": {"a": 1}}, "input", "'input' must be a string, a list of strings"),
        ({"input": ["a", 1]}, "input[1]", "'input[1]' must be a string, a list of strings"),
        ({"input": [[1], "a"]}, "input[1]", "'input[1]' must be a string, a list of strings"),
        ({"input": [[1, -1]]}, "input[0]", "'input[0]' must have token ids only"),
        ({"input": ["a"] * 2049}, "input", "'input' has 2049 elements, more than 2048"),
        ({"input": [4, 5]}, "input", "model 'encoder' does not accept token ids: send strings"),
        ({"input": [[4], [4, 5]], "model": "even"}, "input", "the lists of 'input' must have the"),
        ({"encoding_format": "int8"}, "encoding_format", "'encoding_format' must be one of"),
        ({"dimensions": 2}, "dimensions", "'dimensions' must be 3, the length of this model's"),
        ({"dimensions": 0}, "dimensions", "'dimensions' must be from 1"),
        ({"models": "a"}, "models", "unknown parameter 'models'; did you mean 'model'?"),
        ({"model": "ids"}, "model", "model 'ids' cannot embed text: its input is not one text"),
        ({"model": "pairs"}, "model", "model 'pairs' cannot embed text"),
        ({"model": "tensors"}, "model", "model 'tensors' cannot embed text"),
        ({"input": "a" * 300_000}, None, "input 'text', row 0 has 300,000 characters"),
    ],
)
def test_wrong_requests_have_openais_form(
    client: httpx.Client, body: dict[str, Any], parameter: str | None, message: str
) -> None:
    """The error names the field, as the official client expects."""
    answer = client.post("/v1/embeddings", json={"model": "encoder", "input": "good", **body})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
    assert error["param"] == parameter
    assert error["message"].startswith(message)


def test_an_unknown_model_is_not_found(client: httpx.Client) -> None:
    """The code is OpenAI's."""
    answer = embed(client, "a", model="none")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"


def test_encoders_are_listed(client: httpx.Client) -> None:
    """Models without a tokenizer, and classifiers with names of classes, are not."""
    listed = [one["id"] for one in client.get("/v1/models").json()["data"]]
    assert sorted(listed) == ["cached", "encoder"]


def test_v1_of_tensorflow_serving_is_unchanged(client: httpx.Client) -> None:
    """A model's own path has its status, and `:predict` its rows."""
    status = client.get("/v1/models/encoder").json()
    assert status["model_version_status"][0]["state"] == "AVAILABLE"
    assert (status["id"], status["object"]) == ("encoder", "model")
    rows = client.post("/v1/models/encoder:predict", json={"instances": ["good"]})
    assert np.array_equal(
        np.array(rows.json()["predictions"], np.float32), vectors(embed(client, "good"))
    )
    assert "id" not in client.get("/v1/models/tensors").json()
