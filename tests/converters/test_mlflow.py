"""Models of a real MLflow server, which uv fetches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import numpy as np
import pytest

from cohort.repository import read_manifest
from cohort.session import Opener, Provider
from cohort_prepare.failures import Misused
from cohort_prepare.mlflow_models import fetched_from_mlflow
from tests.e2e.processes import free_port
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(
    os.environ.get("CONVERTERS") != "all", reason="MLflow is fetched; `make converters` runs it"
)

MLFLOW = ("uv", "run", "--no-project", "--with", "mlflow==3.17.*")
ONNX = ("--with", "onnx==1.21.*", "--with", "skl2onnx==1.20.*", "--with", "onnxruntime==1.31.1")

QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true"}

REGISTER = """
import mlflow, mlflow.onnx, mlflow.sklearn
from skl2onnx import to_onnx
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
features, labels = load_iris(return_X_y=True)
features = features.astype("f4")
model = LogisticRegression(max_iter=500).fit(features, labels)
made = to_onnx(model, features[:1], options={"zipmap": False}, target_opset=17)
quick = {"await_registration_for": 0, "pip_requirements": ["onnx"]}
with mlflow.start_run():
    mlflow.onnx.log_model(made, name="m", registered_model_name="iris", **quick)
    mlflow.sklearn.log_model(model, name="s", registered_model_name="fitted", **quick)
    mlflow.pyfunc.log_model(
        name="p", python_model=lambda model_input: model_input, registered_model_name="other",
        **quick,
    )
mlflow.MlflowClient().set_registered_model_alias("iris", "champion", "1")
"""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry with three models, at the address that it gives."""
    folder, port = tmp_path_factory.mktemp("mlflow"), free_port()
    address = f"http://127.0.0.1:{port}"
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [
                *(*MLFLOW, "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)),
                *("--workers", "1", "--backend-store-uri", "sqlite:///mlflow.db"),
                *("--artifacts-destination", "./artifacts"),
            ],
            cwd=folder,
            env={**os.environ, **QUIET},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def answers() -> bool:
        assert process.poll() is None, (folder / "log.txt").read_text()
        with suppress(httpx.TransportError):
            return httpx.get(f"{address}/health").status_code == 200
        return False

    try:
        wait_until(answers, seconds=300)
        done = subprocess.run(
            [*MLFLOW, *ONNX, "python", "-c", REGISTER],
            cwd=folder,
            env={**os.environ, **QUIET, "MLFLOW_TRACKING_URI": address},
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        yield address
    finally:
        os.killpg(process.pid, 9)
        process.wait()


@pytest.fixture
def asked(registry: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The registry, which is the one that this process asks."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", registry)
    return registry


@pytest.mark.parametrize("uri", ["models:/iris/1", "models:/iris@champion"])
def test_registered_onnx_model_is_fetched(asked: str, uri: str) -> None:
    """A version or an alias selects it; it opens, answers as trained, and is then removed."""
    from sklearn.datasets import load_iris

    with fetched_from_mlflow(uri) as found:
        assert (str(found), found.framework) == ("models:/iris/1", "")
        session = Opener(found.path, chain=(Provider("cpu"),)).open()
        features, labels = load_iris(return_X_y=True)
        answered = session.run({"X": features.astype("f4")})[0]
        assert (np.asarray(answered) == labels).mean() > 0.95
    assert not found.path.exists()


def test_other_flavour_is_given_with_its_framework(asked: str) -> None:
    """Its files are given as `cohort convert` accepts them."""
    with fetched_from_mlflow("models:/fitted/1") as found:
        assert found.framework == "sklearn"
        assert found.path.is_file()


def test_other_flavour_is_converted_and_verified(asked: str, tmp_path: Path) -> None:
    """No pickle is read if MLflow saved none; a model that is already ONNX needs no conversion."""
    out = tmp_path / "model.onnx"
    command = [sys.executable, "-m", "cohort", "convert", "--json", "--out", str(out)]
    done = subprocess.run(
        [*command, "models:/fitted/1", "--with", "skops"], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout)["framework"] == "sklearn"
    assert out.is_file()
    compare = [sys.executable, "-m", "cohort", "verify", "--json"]
    for source in ("models:/fitted/1", "models:/iris@champion"):  # one training, registered twice
        done = subprocess.run(
            [*compare, source, str(out), "--with", "skops"], capture_output=True, check=False
        )
        assert (done.returncode, json.loads(done.stdout)["good"]) == (0, True), done.stderr
    done = subprocess.run([*command, "models:/iris/1"], capture_output=True, check=False)
    assert done.returncode == 2
    assert b"models:/iris/1 is ONNX already" in done.stderr


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        ("models:/nobody/1", "(name=nobody, version=1) not found; MLFLOW_TRACKING_URI says"),
        ("models:/iris/2", "not found"),
        ("models:/iris@nobody", "alias nobody not found"),
        ("models:/other/1", "has the flavours python_function; taken are onnx, sklearn"),
        ("models:/iris", "an MLflow model must be models:/NAME/VERSION"),
        ("models:/iris/Production", "an MLflow model must be"),
    ],
)
def test_what_is_not_there_is_told(asked: str, uri: str, told: str) -> None:
    """The error has MLflow's words and states what to do."""
    with pytest.raises(Misused) as error, fetched_from_mlflow(uri):
        pass
    assert told in str(error.value)


def test_registry_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes within seconds, not MLflow's minutes; so does one about a missing address."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    with pytest.raises(Misused, match="cannot be had"), fetched_from_mlflow("models:/iris/1"):
        pass
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    with (
        pytest.raises(Misused, match="set MLFLOW_TRACKING_URI"),
        fetched_from_mlflow("models:/iris/1"),
    ):
        pass


def test_registered_onnx_model_is_published(asked: str, tmp_path: Path) -> None:
    """The alias selects it; the error about another flavour names the command that converts it."""
    command = [sys.executable, "-m", "cohort", "publish", "--name", "iris", "--to", str(tmp_path)]
    done = subprocess.run([*command, "models:/iris@champion"], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert (tmp_path / "iris/1/model.onnx").is_file()
    done = subprocess.run([*command, "models:/fitted/1"], capture_output=True, check=False)
    assert done.returncode == 2
    assert b"cohort convert models:/fitted/1 --out model.onnx" in done.stderr


def test_published_model_is_compared_with_a_registered_source(asked: str, tmp_path: Path) -> None:
    """`publish --source` takes a version and an alias, and the manifest has the difference."""
    command = [sys.executable, "-m", "cohort", "publish", "models:/iris/1", "--name", "iris"]
    for source in ("models:/fitted/1", "models:/iris@champion"):  # one training, registered twice
        models = tmp_path / source.rpartition("/")[2]
        compare = ["--to", str(models), "--source", source, "--with", "skops"]
        done = subprocess.run([*command, *compare], capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        manifest = read_manifest(models / "iris" / "1")
        assert manifest is not None
        assert manifest.difference is not None
        assert manifest.difference.max_absolute < 1e-4
