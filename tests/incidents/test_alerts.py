"""Fire alerts on purpose, and follow their entries of docs/operations/runbook.md.

A real server and a real Prometheus use the shipped rules; only waiting and look-back times are
shortened. Commands and edits are copied from the page. `make recorded` writes the series as cases
for promtool, both for alerts that fire and for those that must be silent.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import onnx_models
from tests.e2e.processes import MODELS
from tests.incidents.recording import Case
from tests.incidents.scenes import Scene, scene
from tests.waiting import wait_until

FLOWER = {"inputs": {"features": [[5.1, 3.5, 1.4, 0.2]]}}
SLOW = {"inputs": {"x": [[0.5] * 4]}}
VERSION = "curl $R/models/$model/versions/$version"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, recorded: list[Case]) -> Iterator[Scene]:
    """One replica with the flowers' model, and one whose runs take long and are well."""
    folder = tmp_path_factory.mktemp("shop")
    models = folder / "models"
    shutil.copytree(MODELS / "iris" / "1", models / "iris" / "1")
    onnx_models.save(onnx_models.slow(), models / "slow" / "1" / "model.onnx")
    with scene(models, folder, rollouts=folder / "rollouts.yaml") as opened:
        yield opened
        recorded += opened.recorded


@pytest.fixture
def models(shop: Scene) -> Path:
    """The folder of its models."""
    return shop.replica.models


def default_version(shop: Scene) -> object:
    """Return the default version of the model of flowers."""
    return shop.replica.server.get("/models/iris").json()["default_version"]


def test_a_version_with_other_inputs_did_not_take_over(shop: Scene, models: Path) -> None:
    """No metric showed that a push served no request. Now it is a ticket.

    The runbook: `held_back` in /health has the difference; `allow_signature_change` lets it serve.
    """
    other, config = models / "iris" / "2", models / "iris" / "config.yaml"
    with shop.incident("CohortVersionHeldBack") as alert:
        onnx_models.save(onnx_models.identity(shape=("N", 9)), other / "model.onnx")
        alert.fires("warning")
        assert "iris/2" in json.loads(alert.run("curl $R/health"))["held_back"]
        config.write_text(alert.quoted("allow_signature_change: true"))
        wait_until(lambda: default_version(shop) == "2")
        alert.ends()
    shutil.rmtree(other)
    config.unlink()
    wait_until(lambda: default_version(shop) == "1")


@pytest.mark.long
def test_a_version_with_the_same_inputs_takes_over(shop: Scene, models: Path) -> None:
    """Neither a good push nor its removal makes an alert, as before."""
    with (
        shop.quiet("CohortVersionHeldBack", "a good version is pushed and taken back"),
        shop.quiet("CohortVersionUnavailable", "a good version is pushed and taken back"),
    ):
        shutil.copytree(models / "iris" / "1", models / "iris" / "2")
        wait_until(lambda: default_version(shop) == "2")
        shutil.rmtree(models / "iris" / "2")
        wait_until(lambda: default_version(shop) == "1")


@pytest.mark.long
def test_a_config_had_a_typing_mistake(shop: Scene, models: Path) -> None:
    """The model kept its former config, and only the log showed it. Now it is a ticket.

    The runbook: /health names the file and the key, and so does `cohort check`; correct it.
    """
    config = models / "iris" / "config.yaml"
    with shop.incident("CohortModelsFolderInvalid") as alert:
        config.write_text("batching: {max_batchsize: 4}\n")
        alert.fires("warning")
        assert "max_batchsize" in json.loads(alert.run("curl $R/health"))["problems"][0]
        assert "max_batchsize" in alert.run("cohort check")
        assert shop.ask("iris", FLOWER) == [200]
        config.write_text("batching: {max_batch_size: 4}\n")
        alert.ends()
    config.unlink()


@pytest.mark.long
def test_a_push_never_served(shop: Scene, models: Path) -> None:
    """A new model whose only version is broken paged an operator. Now it is a ticket.

    The runbook: the version's page has the reason; publish a corrected one.
    """
    file = models / "new" / "1" / "model.onnx"
    with (
        shop.quiet("CohortModelUnavailable", "a model is pushed whose only version is broken"),
        shop.incident("CohortVersionUnavailable") as alert,
    ):
        file.parent.mkdir(parents=True)
        file.write_bytes(b"no model at all")
        alert.fires("warning")
        assert json.loads(alert.run(VERSION))["reason"]
        shutil.copy(MODELS / "iris" / "1" / "model.onnx", file)
        alert.ends()
    shutil.rmtree(file.parents[1])


@pytest.mark.long
def test_an_operator_unloaded_a_model(shop: Scene) -> None:
    """An operator was paged for a deliberate action. Now there is no alert."""
    with (
        shop.quiet("CohortModelUnavailable", "an operator unloads a model"),
        shop.quiet("CohortVersionUnavailable", "an operator unloads a model"),
    ):
        shop.admin("models/iris/unload")
        assert shop.ask("iris", FLOWER) == [503]
        shop.watched.wait_for('absent(model_serves{model="iris"})')
    shop.admin("models/iris/load")


@pytest.mark.long
def test_a_model_became_unavailable(shop: Scene, models: Path) -> None:
    """Its file was overwritten while it served, and a restart found only that. It is critical.

    The runbook: the model's page has the reason; put the last working version back.
    """
    file = models / "iris" / "1" / "model.onnx"
    with shop.incident("CohortModelUnavailable") as alert:
        file.write_bytes(b"no model at all")
        wait_until(lambda: shop.replica.server.get("/health").json()["problems"])
        assert shop.ask("iris", FLOWER) == [200]  # what was loaded serves on
        shop.replica.server.stop()
        shop.replica.start(ready=False)
        alert.fires("critical")
        assert shop.ask("iris", FLOWER) == [503]
        (version,) = json.loads(alert.run("curl $R/models/$model"))["versions"]
        assert version["reason"]
        shutil.copy(MODELS / "iris" / "1" / "model.onnx", file)
        alert.ends()
        assert shop.ask("iris", FLOWER) == [200]


@pytest.mark.long
def test_a_model_was_slow_on_purpose(shop: Scene, models: Path) -> None:
    """A healthy model of 150 ms was critical within three minutes. Now its own objective counts.

    The runbook, where the objective cannot be met on a quiet machine: raise it.
    """
    config = models / "slow" / "config.yaml"
    with shop.quiet("CohortLatencyBudgetBurn", "a slow model without an objective"):
        assert set(shop.ask("slow", SLOW, times=20)) == {200}
    with shop.incident("CohortLatencyBudgetBurn") as alert:
        config.write_text("objective_ms: 0.001\n")
        shop.watched.wait_for('model_latency_objective_seconds{model="slow"} == 1e-6')
        shop.watched.wait_for('instance_model:slow_requests:sum{model="slow"} == 0')

        def fires() -> bool:
            shop.ask("slow", SLOW, times=20)
            return bool(shop.watched.query(f'ALERTS{{alertname="{alert.name}"}}'))

        wait_until(fires)
        alert.fires("critical")
        (version,) = json.loads(alert.run("curl $R/models/$model"))["versions"]
        assert version[alert.quoted("objective_ms")] == 0.001
        config.write_text("objective_ms: 60000\n")
        alert.ends()
    with shop.quiet("CohortLatencyBudgetBurn", "a slow model that meets its objective"):
        shop.watched.wait_for('model_latency_objective_seconds{model="slow"} == 60')
        assert set(shop.ask("slow", SLOW, times=20)) == {200}
    config.unlink()


@pytest.mark.long
def test_a_broken_export_told_its_callers_that_they_were_wrong(shop: Scene, models: Path) -> None:
    """89 of 89 callers got 400, which does not count in a budget. Now it is critical.

    The runbook: the log has the runtime's message; remove the new version. Callers' mistakes that
    are found before a run spend no budget.
    """
    for version, size in ((1, 10), (2, 3)):
        model = onnx_models.gather(size=size)
        onnx_models.save(model, models / "table" / str(version) / "model.onnx")
    wait_until(lambda: shop.ask("table", {"inputs": {"index": [1]}}) == [200])
    with shop.quiet("CohortRefusedRunsBudgetBurn", "callers send what does not fit the model"):
        assert set(shop.ask("table", {"inputs": {"index": ["x"]}}, times=20)) == {400}
        assert set(shop.ask("table", {"inputs": {"index": [1]}}, times=20)) == {200}
    with shop.incident("CohortRefusedRunsBudgetBurn") as alert:

        def fires() -> bool:
            assert set(shop.ask("table", {"inputs": {"index": [5]}}, times=20)) == {400}
            return bool(shop.watched.query(f'ALERTS{{alertname="{alert.name}"}}'))

        wait_until(fires)
        alert.fires("critical")
        assert "indices" in alert.logged("refused")["error"]
        shutil.rmtree(models / "table" / "2")
        wait_until(lambda: shop.ask("table", {"inputs": {"index": [5]}}) == [200])
        alert.ends()
    shutil.rmtree(models / "table")


@pytest.mark.long
def test_a_gpu_was_asked_for_and_not_there(shop: Scene, models: Path) -> None:
    """Every CPU image always had this alert. Now only models that name another provider have it.

    The runbook: the version's page has the refused provider and the reason; if the CPU is intended,
    configure it.
    """
    if shop.replica.server.get("/models/iris/versions/1").json()["providers"]["active"] != "cpu":
        pytest.skip("for a machine without a GPU")
    config = models / "iris" / "config.yaml"
    with shop.quiet("CohortProviderFallback", "a CPU, and nobody asked for a GPU"):
        assert shop.ask("iris", FLOWER) == [200]
    with shop.incident("CohortProviderFallback") as alert:
        config.write_text("providers: [cuda, cpu]\n")
        alert.fires("warning")
        assert json.loads(alert.run(VERSION))["providers"]["fallbacks"][0]["reason"]
        config.write_text(alert.quoted("providers: [cpu]"))
        alert.ends()
    config.unlink()


@pytest.mark.long
def test_a_model_was_removed_while_it_was_asked_for(shop: Scene, models: Path) -> None:
    """Its callers got 404, which does not count in a budget. Now it is critical.

    The runbook: put the folder back.
    """
    kept = models.with_name("kept")
    shop.ask("iris", FLOWER)
    with shop.incident("CohortModelGone") as alert:
        shop.ask("iris", FLOWER, times=20)
        (models / "iris").rename(kept)
        alert.fires("critical")
        assert "iris" not in alert.run("curl $R/models")
        assert shop.ask("iris", FLOWER) == [404]
        kept.rename(models / "iris")
        alert.ends()


@pytest.mark.long
def test_a_models_folder_was_mistyped(tmp_path: Path, recorded: list[Case]) -> None:
    """The server was ready with no model to serve. Now it is not ready, and that is a ticket.

    The runbook: /health names the missing models; put them there, or allow an empty folder.
    """
    models = tmp_path / "modles"
    with scene(models, tmp_path, ready=False) as found:
        with found.incident("CohortNotReady") as alert:
            alert.fires("warning")
            health = json.loads(alert.run("curl $R/health"))
            assert health["reason"] == "there is no model to serve"
            assert "folder not found" in health["problems"][0]
            shutil.copytree(MODELS / "iris", models / "iris")
            alert.ends()
        found.replica.server.wait_for("/health/ready")
        alert.quoted("COHORT_ALLOW_EMPTY=true")
        recorded += found.recorded
    later = tmp_path / "later"
    later.mkdir()
    with scene(tmp_path / "empty", later, allow_empty=True) as found:
        with found.quiet("CohortNotReady", "a server that is to be filled later"):
            assert json.loads(found.replica.server.get("/health").text)["ready"]
        recorded += found.recorded
