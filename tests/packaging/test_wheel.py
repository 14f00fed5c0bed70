"""The wheel, in an environment and a project that are not ours."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import distribution, packages_distributions
from pathlib import Path
from zipfile import ZipFile

import httpx
import pytest

from tests import onnx_models
from tests.e2e.processes import ROOT, cohort
from tests.packaging.environments import RUNTIME, Environment, build_wheel
from tests.packaging.index import Index, Proxy, serve_index
from tests.waiting import PATIENCE

FLOWER = {"model": "mlp", "inputs": {"x": [[5.1, 3.5, 1.4, 0.2]]}}

BESIDE = {
    "onnxscript-0.7.2": ["onnxscript/rewriter/onnxruntime/__init__.py"],
    "optimum_onnx-0.1.0": ["optimum/onnxruntime/__init__.py", "optimum/exporters/onnx/config.py"],
    "onnxruntime_extensions-0.15.2": ["onnxruntime_extensions/__init__.py"],
    "onnxruntime_genai-0.18.0": ["onnxruntime_genai/__init__.py"],
}
"""Wheels that people install as well, with those of their files that look most like the runtime."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, as `make wheel` builds it."""
    return build_wheel(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the wheel and what it requires, but no ONNX Runtime."""
    return Environment(tmp_path_factory.mktemp("bare"), wheel)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The same with the ONNX Runtime that the tests run with."""
    environment = Environment(tmp_path_factory.mktemp("installed"), wheel)
    link_runtime(environment)
    return environment


def version_of(wheel: Path) -> str:
    """Return the version in a wheel's name."""
    return wheel.name.split("-")[1]


def link_runtime(environment: Environment) -> str:
    """Link this environment's ONNX Runtime; returns what it is called."""
    (name,) = set(packages_distributions()[RUNTIME])
    for one in (name, "flatbuffers", "packaging"):  # its other requirements
        environment.link(distribution(one))
    return name


def problem(environment: Environment) -> str:
    """Return the problem that the commands find with it, without their second of start-up."""
    ask = "from cohort.cli.runtime_check import runtime_problem; print(runtime_problem())"
    done = subprocess.run(
        [environment.python, "-Ic", ask], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def install_with_uv(index: str, environment: Path) -> None:
    """Install with the index first and the machine's for the rest, in locked versions."""
    uv = shutil.which("uv") or str(ROOT / ".tools/bin/uv")
    python = environment / "bin" / "python"
    subprocess.run(
        [uv, "venv", "-q", "--no-project", "--python", sys.executable, environment], check=True
    )
    subprocess.run(
        [uv, "pip", "install", "-q", "--python", python, "--index", index,
         "--constraint", ROOT / "requirements/cpu.txt", "cohort[cpu]"],
        check=True,
    )  # fmt: skip


def install_with_pip(index: str, environment: Path) -> None:
    """Install as a user would; pip knows no other index."""
    subprocess.run(["python3", "-m", "venv", environment], check=True)
    python = environment / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "-q", "--index-url", index, "cohort[cpu]"], check=True
    )


CLIENTS = {"uv": (install_with_uv, Index), "pip": (install_with_pip, Proxy)}
"""Functions that install, with the kind of index that each needs; pip is slow."""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's project whose package is called `app`, as many are, and which has a model."""
    monkeypatch.delenv("PYTHONPATH", raising=False)  # it may lead to the checkout
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__init__.py").write_text("raise SystemExit('the project was imported')\n")
    onnx_models.save(onnx_models.mlp(), tmp_path / "models" / "mlp" / "1" / "model.onnx")
    return tmp_path


def test_the_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    """Every file that git has of it, the schemas among them, and what runs models in browsers."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "app"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    expected = {name[4:] for name in listed.stdout.splitlines() if (ROOT / name).exists()}
    with ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if ".dist-info/" not in name}
    runtime = {
        str(path.relative_to(ROOT / "app"))
        for path in (ROOT / "app/cohort/http/playground/page/runtime").iterdir()
    }
    assert "cohort/http/playground/page/runtime/ort-wasm-simd-threaded.wasm" in runtime
    assert files == expected | runtime
    assert "cohort/py.typed" in files


def test_the_wheel_offers_each_runtime(wheel: Path) -> None:
    """Its extras have the names in the Makefile's RUNTIME; other extras serve other commands."""
    with ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        text = archive.read(metadata).decode()
    extras = re.findall(r"^Provides-Extra: (.*)$", text, re.MULTILINE)
    runtimes, others = extras[:4], set(extras[4:])
    assert runtimes == ["gpu", "cuda", "cpu", "openvino"]
    assert others >= {
        "prepare",
        "bench",
        "remote",
        "generative",
        "tracing",
        "sklearn",
        "xgboost",
        "pytorch",
        "tensorflow",
    }


def test_it_serves_from_the_folder_of_another_project(
    installed: Environment, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of that project is imported, whatever its package is called."""
    monkeypatch.setenv("PYTHONPATH", ".")
    with cohort(
        Path("models"),
        project,
        program=[str(installed.cohort)],
        inspection_seconds=60,
        cwd=project,
        watchdog_seconds=60,
    ) as server:
        assert httpx.post(server.url + "/predict", json=FLOWER).json()["model"] == "mlp"
        assert "model inspected" in server.logged
        page = server.get("/docs").text
        for asset in re.findall(r'(?:src|href)="(/docs/static/[^"]+)"', page):
            assert server.get(asset).status_code == 200
        assert server.stop() == 0


@pytest.mark.parametrize("client", CLIENTS if os.environ.get("INDEX") == "all" else ["uv"])
def test_it_is_installed_from_an_index(
    client: str, wheel: Path, project: Path, tmp_path: Path
) -> None:
    """`cohort[cpu]` brings all that serving needs, and the page and the templates with it."""
    environment = tmp_path / "environment"
    install, kind = CLIENTS[client]
    with serve_index(wheel, tmp_path / "index", kind) as index:
        install(index, environment)
    program = environment / "bin" / "cohort"
    for command in ("init mine models/mlp/1/model.onnx", "check"):
        subprocess.run([program, *command.split()], cwd=project, check=True, capture_output=True)
    assert "batching:" in (project / "models" / "mine" / "config.yaml").read_text()
    with cohort(Path("models"), tmp_path, program=[str(program)], cwd=project) as server:
        assert server.get("/v2").json()["version"] == version_of(wheel)
        answer = httpx.post(server.url + "/predict", json=FLOWER, timeout=PATIENCE).json()
        assert answer["model"] == "mlp"
        assert "<title>" in server.get("/playground").text
        assert server.get("/playground/models/mine").status_code == 200
        assert server.stop() == 0


def test_it_runs_as_a_module(installed: Environment, project: Path, wheel: Path) -> None:
    """`python -m cohort`, which looks into the working folder first, finds its own package."""
    done = subprocess.run(
        [installed.python, "-m", "cohort", "--version"],
        cwd=project, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, f"cohort {version_of(wheel)}\n"), done.stderr


def test_an_empty_folder_is_told_what_to_put_there(installed: Environment, tmp_path: Path) -> None:
    """The wheel does not contain the bundled models."""
    done = installed.run("check", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == (
        "models: folder not found; make it with <name>/1/model.onnx in it, or set --models\n"
    )


def test_a_missing_or_second_runtime_is_told_with_what_mends_it(
    bare: Environment, project: Path
) -> None:
    """The check runs before an import would fail, or would use the wrong runtime."""
    done = bare.run("serve", cwd=project)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: ONNX Runtime is not installed: uv pip install --python ")
    assert "onnxruntime==" in line
    assert "onnxruntime-gpu==" in line
    assert bare.run("serve", "--help", cwd=project).returncode == 0

    name = link_runtime(bare)
    assert problem(bare) == ""
    for other, files in BESIDE.items():  # not one is a second runtime
        folder = bare.site / f"{other}.dist-info"
        folder.mkdir()
        (folder / "RECORD").write_text("".join(f"{file},sha256=x,1\n" for file in files))
    assert problem(bare) == ""
    second = bare.site / "onnxruntime_openvino-1.24.1.dist-info"
    second.mkdir()
    (second / "RECORD").write_text("onnxruntime/__init__.py,sha256=x,1\n")
    line = problem(bare)
    assert f"{name} and onnxruntime-openvino are installed and overwrite each other: " in line
    assert line.count(str(bare.python)) == 2, "one command removes both, one brings one back"

    (bare.site / RUNTIME).unlink()  # as pip leaves it when one of two is removed
    line = problem(bare)
    assert "lost its files" in line
    assert "--force-reinstall" in line
