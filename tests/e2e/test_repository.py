"""Good and bad models on disk, as a running server loads them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import httpx

from cohort.session import default_chain
from tests import onnx_models
from tests.e2e.processes import MODELS, Cohort, cohort
from tests.e2e.scrape import Scrape
from tests.waiting import wait_until

ASK_MLP = {"inputs": {"x": [[0.0] * 4]}}


def ask(server: Cohort, model: str, body: dict[str, Any]) -> httpx.Response:
    """POST `body` to `model`."""
    return httpx.post(f"{server.url}/models/{model}/predict", json=body)


def states(server: Cohort, model: str) -> dict[str, str]:
    """The state of each version of `model`."""
    told = httpx.get(f"{server.url}/models/{model}").json()
    return {one["version"]: one["state"] for one in told["versions"]}


def test_one_bad_model_leaves_the_others_serving(models: Path, tmp_path: Path) -> None:
    """The bad version is UNAVAILABLE with its reason; the replica is ready and serves the rest."""
    shutil.copytree(MODELS / "iris", models / "iris")
    (models / "broken/1").mkdir(parents=True)
    (models / "broken/1/model.onnx").write_bytes(b"this is no model")
    with cohort(models, tmp_path, inspection_seconds=60) as server:
        assert states(server, "broken") == {"1": "UNAVAILABLE"}
        told = httpx.get(server.url + "/models/broken/versions/1").json()
        assert told["reason"]
        assert str(models) not in told["reason"]
        refused = ask(server, "broken", ASK_MLP)
        assert (refused.status_code, refused.json()["code"]) == (503, "NotReady")
        assert ask(server, "iris", {"inputs": {"features": [[1, 2, 3, 4]]}}).is_success
        assert httpx.get(server.url + "/health").json()["status"] == "degraded"
        scrape = Scrape(server.url)
        assert scrape.value("model_state", model="broken", state="UNAVAILABLE") == 1
        assert scrape.value("model_state", model="iris", state="READY") == 1


def test_a_broken_newest_version_leaves_the_older_one_serving(models: Path, tmp_path: Path) -> None:
    """At start-up the next older version is loaded instead."""
    onnx_models.save(onnx_models.mlp(), models / "mlp/1/model.onnx")
    onnx_models.save(onnx_models.mlp(), models / "mlp/2/model.onnx")
    (models / "mlp/2/model.onnx").write_bytes(b"\x00" * 100)
    with cohort(models, tmp_path, inspection_seconds=60) as server:
        assert states(server, "mlp") == {"1": "READY", "2": "UNAVAILABLE"}
        assert ask(server, "mlp", ASK_MLP).json()["version"] == "1"


def test_a_new_version_takes_over_and_the_old_one_goes(models: Path, tmp_path: Path) -> None:
    """It does so without a restart; when the new one is removed, the old one comes back."""
    onnx_models.save(onnx_models.mlp(), models / "mlp/1/model.onnx")
    with cohort(models, tmp_path, inspection_seconds=60) as server:
        assert ask(server, "mlp", ASK_MLP).json()["version"] == "1"
        onnx_models.save(onnx_models.mlp(), tmp_path / "new/model.onnx")
        (tmp_path / "new").rename(models / "mlp/2")
        server.wait_for("/models/mlp/versions/1", 404)
        assert ask(server, "mlp", ASK_MLP).json()["version"] == "2"
        shutil.rmtree(models / "mlp/2")
        server.wait_for("/models/mlp/versions/2", 404)
        assert ask(server, "mlp", ASK_MLP).json()["version"] == "1"


def test_a_broken_update_leaves_what_serves_alone(models: Path, tmp_path: Path) -> None:
    """A new version that cannot be opened shows as UNAVAILABLE; the old one answers on."""
    onnx_models.save(onnx_models.mlp(), models / "mlp/1/model.onnx")
    with cohort(models, tmp_path, inspection_seconds=60) as server:
        (tmp_path / "bad").mkdir()
        (tmp_path / "bad/model.onnx").write_bytes(b"nothing good")
        (tmp_path / "bad").rename(models / "mlp/2")
        server.wait_for("/models/mlp/versions/2")
        wait_until(lambda: states(server, "mlp")["2"] == "UNAVAILABLE")
        assert states(server, "mlp") == {"1": "READY", "2": "UNAVAILABLE"}
        assert ask(server, "mlp", ASK_MLP).json()["version"] == "1"
        assert httpx.get(server.url + "/health/ready").is_success


def test_a_bad_config_is_told_with_its_key(models: Path, tmp_path: Path) -> None:
    """The model is UNAVAILABLE and its reason names the key; the server is not ready."""
    onnx_models.save(onnx_models.mlp(), models / "mlp/1/model.onnx")
    (models / "mlp/config.yaml").write_text("batching: {max_batchsize: 4}\n")
    with cohort(models, tmp_path, ready=False) as server:
        wait_until(lambda: "models without a ready version" in server.get("/health/ready").text)
        reason = httpx.get(server.url + "/models/mlp/versions/1").json()["reason"]
        assert "batching: unknown key 'max_batchsize'" in reason
        assert "max_batch_size" in reason


def test_an_empty_repository_serves_errors_until_a_model_comes(
    models: Path, tmp_path: Path
) -> None:
    """The server starts, is not ready and reports why, and finds the first model on its own."""
    with cohort(models, tmp_path, ready=False) as server:
        wait_until(lambda: "there is no model to serve" in server.get("/health/ready").text)
        assert "has no model" in server.get("/health").json()["problems"][0]
        assert Scrape(server.url).value("server_ready") == 0
        assert httpx.post(server.url + "/predict", json=ASK_MLP).status_code in (404, 503)
        onnx_models.save(onnx_models.mlp(), tmp_path / "new/1/model.onnx")
        (tmp_path / "new").rename(models / "mlp")
        server.wait_for("/health/ready")
        assert httpx.post(server.url + "/predict", json=ASK_MLP).is_success


def test_the_tutorials_form_works_as_it_is(models: Path, tmp_path: Path) -> None:
    """The answer to `{"input": …}` is `{"prediction": …}`, an object if there are more outputs."""
    shutil.copytree(MODELS / "iris", models / "iris")
    with cohort(models, tmp_path, inspection_seconds=60) as server:
        told = httpx.post(server.url + "/predict", json={"input": [[5.1, 3.5, 1.4, 0.2]]}).json()
        assert set(told) == {"prediction", "inference_time_ms", "model", "version"}
        assert told["prediction"]["label"] == [0]
        only = {"input": [[5.1, 3.5, 1.4, 0.2]], "outputs": ["label"]}
        assert httpx.post(server.url + "/predict", json=only).json()["prediction"] == [0]


def test_a_model_whose_rows_influence_each_other_is_served_one_by_one(
    models: Path, tmp_path: Path
) -> None:
    """The check at load is reported on /models, and answers equal those of rows alone."""
    onnx_models.save(onnx_models.dynamically_quantized(), models / "dq/1/model.onnx")
    with cohort(models, tmp_path, inspection_seconds=60) as server:
        told = httpx.get(server.url + "/models/dq/versions/1").json()
        assert told["batching"]["on"] is False
        assert "influence" in told["batching"]["reason"]
        wait_until(lambda: "requests run one by one" in server.logged)


def test_what_nobody_asked_for_is_not_missed(bundled: Cohort) -> None:
    """Models use what the runtime can do on this machine; the lack of a GPU is logged once."""
    chain = default_chain()
    wanted = [link.name for link in chain.links]
    default = {"wanted": wanted, "reason": chain.reason}
    assert bundled.get("/health").json()["default_providers"] == default
    told = bundled.get("/models/iris/versions/1").json()["providers"]
    assert told["wanted"] == wanted
    if wanted == ["cpu"]:
        assert (told["active"], told["fell_back"], told["fallbacks"]) == ("cpu", False, [])
        scrape = Scrape(bundled.url)
        assert scrape.value("model_provider_fallback", model="iris", version="1") == 0
        assert bundled.logged.count("models run on the CPU") == bool(chain.reason)
    assert "provider fell back" not in bundled.logged
    assert sum(told["nodes"].values()) > 0


def test_the_process_asks_for_what_a_build_cannot_do(tmp_path: Path) -> None:
    """With COHORT_PROVIDERS, each model without other wishes falls back, with one reason."""
    with cohort(MODELS, tmp_path, providers="coreml, CPU") as server:
        assert server.get("/health").json()["default_providers"]["wanted"] == ["coreml", "cpu"]
        for version in ("digits/versions/1", "iris/versions/1"):
            told = server.get(f"/models/{version}").json()["providers"]
            assert (told["active"], told["fell_back"]) == ("cpu", True)
            assert "no CoreMLExecutionProvider" in told["fallbacks"][0]["reason"]
        assert Scrape(server.url).value("model_provider_fallback", model="iris", version="1") == 1
        assert server.logged.count("no CoreMLExecutionProvider") == 1
