"""Models folders as DVC and Git LFS leave them, with the real tools."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from cohort.errors import LoadFailed
from cohort.session import Opener, Provider
from tests import onnx_models
from tests.e2e.processes import cohort

pytestmark = pytest.mark.skipif(
    os.environ.get("CONVERTERS") != "all", reason="DVC is fetched; `make converters` runs it"
)

DVC = ("uv", "run", "--no-project", "--with", "dvc==3.67.1", "dvc")
QUIET = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "DVC_NO_ANALYTICS": "1"}


def run(folder: Path, *command: str, **environment: str) -> None:
    """Run a program in a folder; it has to succeed."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **QUIET, **environment},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()


def repository(folder: Path) -> Path:
    """A Git repository with two versions, each with external data."""
    for number in (1, 2):
        onnx_models.save_with_external_data(
            onnx_models.mlp(), folder / f"models/m/{number}/model.onnx"
        )
    run(folder, "git", "init", "-q", ".")
    run(folder, "git", "config", "user.email", "a@b")
    run(folder, "git", "config", "user.name", "a")
    return folder


def states(models: Path, folder: Path) -> Mapping[str, object]:
    """Return a server's health, once it has read the models."""
    with cohort(models, folder, ready=False, allow_empty=True) as server:
        server.wait_for("/health/ready")
        found: Mapping[str, object] = server.get("/health").json()
        return found


@pytest.mark.parametrize("link", ["copy", "hardlink", "symlink"])
def test_folder_pulled_by_dvc_is_served(tmp_path: Path, link: str) -> None:
    """Any link type of DVC works; before the pull, health names the command that pulls."""
    project = repository(tmp_path / "project")
    run(project, *DVC, "init", "-q")
    run(project, *DVC, "config", "cache.type", link)
    run(project, *DVC, "add", "-q", "models/m/1", "models/m/2/model.onnx", "models/m/2/weights.bin")
    health = states(project / "models", tmp_path)
    assert (health["ready"], health["problems"]) == (True, [])
    run(project, "git", "add", "-A")
    run(project, "git", "commit", "-q", "-m", "models")
    run(tmp_path, "git", "clone", "-q", "project", "clone")
    told = str(states(tmp_path / "clone/models", tmp_path)["problems"])
    assert "m/1.dvc: 1 is not here: `dvc pull` fetches it" in told
    assert "m/2: has no model.onnx: `dvc pull` fetches it" in told


@pytest.mark.skipif(shutil.which("git-lfs") is None, reason="apt-get install git-lfs")
def test_folder_pulled_by_git_lfs_is_served(tmp_path: Path) -> None:
    """Pointers say what pulls them; what was pulled serves."""
    project = repository(tmp_path / "project")
    run(project, "git", "lfs", "install", "--local")
    run(project, "git", "lfs", "track", "*.onnx", "*.bin")
    run(project, "git", "add", "-A")
    run(project, "git", "commit", "-q", "-m", "models")
    run(tmp_path, "git", "clone", "-q", "project", "clone", GIT_LFS_SKIP_SMUDGE="1")
    model = tmp_path / "clone/models/m/2/model.onnx"
    with pytest.raises(LoadFailed, match="is a Git LFS pointer, not ONNX: `git lfs pull`"):
        Opener(model, chain=(Provider("cpu"),)).read()
    run(tmp_path / "clone", "git", "lfs", "pull")
    health = states(tmp_path / "clone/models", tmp_path)
    assert (health["ready"], health["problems"]) == (True, [])
