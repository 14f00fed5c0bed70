"""`/v1/models`: OpenAI's list, next to TensorFlow Serving's paths of one model."""

from __future__ import annotations

from tests.http.openai.conftest import Caller


async def test_the_list_has_language_models(caller: Caller) -> None:
    """It has OpenAI's form."""
    listed = (await caller.client.get("/v1/models")).json()
    assert listed["object"] == "list"
    (model,) = listed["data"]
    assert (model["id"], model["object"], model["owned_by"]) == ("m", "model", "cohort")
    assert isinstance(model["created"], int)


async def test_one_language_model_answers_both_kinds_of_clients(caller: Caller) -> None:
    """Its object has OpenAI's keys and TensorFlow Serving's, which do not clash."""
    one = (await caller.client.get("/v1/models/m")).json()
    assert (one["id"], one["object"]) == ("m", "model")
    assert one["model_version_status"][0]["state"] == "AVAILABLE"
    version = (await caller.client.get("/v1/models/m/versions/1")).json()
    assert set(version) == {"model_version_status"}
    signature = (await caller.client.get("/v1/models/m/metadata")).json()
    assert signature["model_spec"]["name"] == "m"
    predicted = await caller.client.post("/v1/models/m:predict", json={"instances": ["one two"]})
    assert predicted.json() == {"predictions": ["one two"]}


async def test_an_unknown_model_is_not_found(caller: Caller) -> None:
    """V1's path of one model has V1's form of errors, but OpenAI's for OpenAI's clients."""
    response = await caller.client.get("/v1/models/nobody")
    assert response.status_code == 404
    assert response.json()["code"] == "ModelNotFound"
    headers = {"x-stainless-lang": "python"}
    response = await caller.client.get("/v1/models/nobody", headers=headers)
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
