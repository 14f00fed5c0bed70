"""Model files that crash a process, take all its memory or compute indefinitely.

They are refused, and other models are served during the attack and after it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import onnx
import pytest

from tests import onnx_models
from tests.e2e.processes import Cohort, cohort
from tests.waiting import PATIENCE, wait_until

HARMFUL = {
    "crash": (onnx_models.calling_functions(8_000, calls=1), "crashed ONNX Runtime"),
    "doubling": (onnx_models.calling_functions(31), "2,147,483,648 nodes"),
    "endless": (onnx_models.endless(), "COHORT_INSPECTION_SECONDS"),
    "hoard": (onnx_models.hoard(10**10), "COHORT_INSPECTION_MB"),
}


@contextmanager
def serving(
    folder: Path, models: dict[str, onnx.ModelProto], *, ready: bool = True, seconds: int = 4
) -> Iterator[Cohort]:
    for name, model in models.items():
        onnx_models.save(model, folder / "models" / name / "1" / "model.onnx")
        (folder / "models" / name / "config.yaml").write_text(json.dumps({"providers": ["cpu"]}))
    with limited(folder, ready=ready, seconds=seconds) as started:
        yield started


def limited(
    folder: Path, *, ready: bool = True, seconds: int = 4
) -> AbstractContextManager[Cohort]:
    models = folder / "models"
    return cohort(models, folder, ready=ready, inspection_seconds=seconds, inspection_mb=512)


def state(server: Cohort, model: str, version: int = 1) -> Any:
    return httpx.get(f"{server.url}/models/{model}/versions/{version}", timeout=PATIENCE).json()


def predicts(server: Cohort, model: str = "plain") -> bool:
    row = {"inputs": {"x": [[1, 2, 3, 4]]}}
    url = f"{server.url}/models/{model}/predict"
    return httpx.post(url, json=row, timeout=PATIENCE).status_code == 200


def inspected(server: Cohort) -> list[str]:
    """The models that were opened in a child process, in order."""
    lines = [json.loads(line) for line in server.logged.splitlines()]
    return [line["model"] for line in lines if line["event"] == "model inspected"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def test_harmful_models_are_refused_and_others_served(folder: Path) -> None:
    """Each has a reason that states what it did, and the setting that allows it."""
    models = {name: model for name, (model, _) in HARMFUL.items()}
    with serving(folder, {**models, "plain": onnx_models.mlp()}) as server:
        for name, (_, told) in HARMFUL.items():
            found = state(server, name)
            assert found["state"] == "UNAVAILABLE"
            assert told in found["reason"]
        assert predicts(server)
        # One with too many nodes is refused before, by its file.
        assert sorted(inspected(server)) == sorted({*HARMFUL, "plain"} - {"doubling"})
        assert server.process.poll() is None


def test_a_second_start_remembers(folder: Path) -> None:
    """Files that passed and files that crashed are not opened again in a child."""
    with limited(folder) as server:
        for name in HARMFUL:
            assert state(server, name)["state"] == "UNAVAILABLE"
        assert predicts(server)
        assert not {"plain", "crash"} & set(inspected(server))


def test_others_are_served_while_a_model_is_inspected(tmp_path: Path) -> None:
    """Health answers, and so does what was loaded before; then the next model has its turn."""
    models = {"a-plain": onnx_models.mlp(), "b-endless": onnx_models.endless()}
    with serving(tmp_path, models, ready=False) as server:
        wait_until(lambda: state(server, "a-plain").get("state") == "READY")
        during = 0

        def over() -> bool:
            nonlocal during
            if state(server, "b-endless")["state"] != "LOADING":
                return True
            assert httpx.get(f"{server.url}/health/live", timeout=PATIENCE).status_code == 200
            assert predicts(server, "a-plain")
            during += 1
            return False

        wait_until(over)
        assert during > 3
        server.wait_for("/health/ready")
        onnx_models.save(onnx_models.mlp(seed=1), tmp_path / "models" / "c" / "1" / "model.onnx")
        wait_until(lambda: predicts(server, "c"))


@pytest.mark.parametrize("inspected", [True, False])
def test_runs_without_end_end_by_a_limit(tmp_path: Path, inspected: bool) -> None:
    """A model that loops with several rows only ends at a limit, with or without inspection.

    The previous version still serves.
    """
    seconds, setting = (2, "COHORT_INSPECTION_SECONDS") if inspected else (0, "load_timeout_s")
    models = tmp_path / "models"
    for name in ("a", "b"):
        onnx_models.save(onnx_models.mlp(), models / name / "1" / "model.onnx")

    def limit(seconds: float) -> None:
        config = f"{{providers: [cpu], load_timeout_s: {PATIENCE if inspected else seconds}, "
        config += "warm_up: {rows: [1, 8]}}"
        (models / "a" / "config.yaml").write_text(config)

    limit(10)
    with cohort(models, tmp_path, inspection_seconds=seconds) as server:
        loops = onnx_models.growing_with_rows(loops=True)
        onnx_models.save(loops, models / "a" / "2" / "model.onnx")
        wait_until(lambda: state(server, "a", 2).get("state") == "UNAVAILABLE")
        assert setting in state(server, "a", 2)["reason"]
        assert predicts(server, "a")
        assert inspected or "load takes long" in server.logged
    limit(1)  # no version of `a` still has to load
    with cohort(models, tmp_path, inspection_seconds=seconds) as server:
        assert state(server, "a", 2).get("state") == "UNAVAILABLE"
        assert predicts(server, "b")


def test_a_crash_of_a_new_version_leaves_the_old_one_serving(tmp_path: Path) -> None:
    """The description states why the new version is unavailable."""
    with serving(tmp_path, {"plain": onnx_models.mlp()}, seconds=60) as server:
        path = tmp_path / "models" / "plain" / "2" / "model.onnx"
        onnx_models.save(onnx_models.calling_functions(8_000, calls=1), path)
        url = f"{server.url}/models/plain/versions/2"
        found = wait_until(
            lambda: (one := httpx.get(url).json()).get("state") == "UNAVAILABLE" and one
        )
        assert "crashed ONNX Runtime" in found["reason"]
        assert predicts(server)


def test_files_are_told_by_their_digests(tmp_path: Path) -> None:
    """The description of a version has the digest, and so has the log."""
    with serving(tmp_path, {"plain": onnx_models.mlp()}) as server:
        sha256 = state(server, "plain")["files"]["model.onnx"]["sha256"]
        assert len(sha256) == 64
        (ready,) = (
            line
            for line in map(json.loads, server.logged.splitlines())
            if line["event"] == "version ready"
        )
        assert ready["sha256"] == sha256


def test_native_code_is_loaded_from_configured_folders_only(tmp_path: Path) -> None:
    """A config that names a library elsewhere is refused with the setting to set."""
    onnx_models.save(onnx_models.mlp(), tmp_path / "models" / "plain" / "1" / "model.onnx")
    onnx_models.save(onnx_models.mlp(), tmp_path / "models" / "custom" / "1" / "model.onnx")
    (tmp_path / "models" / "custom" / "ops.so").write_bytes(b"\x7fELF")
    (tmp_path / "models" / "custom" / "config.yaml").write_text(
        json.dumps({"session": {"custom_op_libraries": ["ops.so"]}})
    )
    with cohort(tmp_path / "models", tmp_path) as server:
        assert "COHORT_CUSTOM_OPS" in state(server, "custom")["reason"]
        assert predicts(server)
