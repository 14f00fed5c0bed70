"""Models of an MLflow registry: `models:/name/version` or `models:/name@alias`."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cohort.errors import quoted
from cohort.repository import ConfigProblems, parse_yaml, read_text
from cohort.system.jobs import JobCrashed, JobLimits, JobRaised, JobTimedOut, run_job
from cohort_prepare.environments import find_environment
from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.frameworks import Framework
from cohort_prepare.processes import link_packages, preparing_environment

MLFLOW_CLIENT = Framework(
    "mlflow", "MLflow", "", ("mlflow",), ("mlflow-skinny==3.17.*",), packages=("mlflow",)
)
"""MLflow's client without the server."""

DOWNLOAD_SECONDS = 3600.0

MODEL_URI = re.compile(r"models:/[^/@\s]+(/[0-9]{1,18}|@[^/@\s]+)")

FLAVORS: Mapping[str, tuple[str, str]] = {
    "onnx": ("data", ""),
    "sklearn": ("pickled_model", "sklearn"),
}
"""Supported MLflow flavours, best first: the key that names the file, and the framework as in
`--from`."""


@dataclass(frozen=True, slots=True)
class MlflowModel:
    """Model downloaded from an MLflow registry.

    name, version: As in MLflow.
    run_id: Run that made it; may be empty.
    path: Its file: ONNX, or a source for `cohort convert`.
    framework: Name as in `--from`; empty for ONNX.
    """

    name: str
    version: str
    run_id: str
    path: Path
    framework: str

    def __str__(self) -> str:
        return f"models:/{self.name}/{self.version}"


def is_mlflow(text: str) -> bool:
    """Return True if `text` names a model of an MLflow registry."""
    return text.startswith("models:/")


@contextmanager
def fetched_from_mlflow(
    uri: str,
    *,
    python: str | None = None,
    packages: Sequence[str] = (),
    on_progress: Callable[[str], None] = lambda _: None,
) -> Iterator[MlflowModel]:
    """Download a model to a folder that exists until the end of the block.

    uri: `models:/name/version` or `models:/name@alias` in the registry at MLFLOW_TRACKING_URI;
        MLflow's variables set the credentials.
    python: The user's interpreter; default None: this one if it has MLflow, otherwise uv's.
    packages: Further packages that the registry's file store needs, such as boto3; default none.
    on_progress: Called with a description of each step.

    Raises Misused if the model does not exist or has no supported flavour.
    """
    if not MODEL_URI.fullmatch(uri):
        raise Misused(
            f"an MLflow model must be models:/NAME/VERSION or models:/NAME@ALIAS, got {quoted(uri)}"
        )
    if not os.environ.get("MLFLOW_TRACKING_URI"):
        raise Misused(
            f"{uri}: set MLFLOW_TRACKING_URI to MLflow's address, such as http://mlflow:5000"
        )
    with tempfile.TemporaryDirectory(prefix="cohort-mlflow-") as name:
        folder = Path(name)
        on_progress(f"Fetching {uri}")
        answer = _download(uri, folder, python, packages)
        path, framework = _find_file(uri, folder / "model")
        yield MlflowModel(answer["name"], answer["version"], answer["run_id"], path, framework)


@contextmanager
def source_on_disk(
    text: str,
    framework: str | None,
    *,
    onnx: bool = False,
    python: str | None = None,
    packages: Sequence[str] = (),
    on_progress: Callable[[str], None] = lambda _: None,
) -> Iterator[tuple[str, str | None]]:
    """Yield the path to open for `text`, and its framework.

    onnx: True if an ONNX model is acceptable; default False.

    An MLflow model is downloaded and exists until the end of the block; other texts are unchanged.
    Other arguments are as in `fetched_from_mlflow`. Raises Misused.
    """
    if not is_mlflow(text):
        yield text, framework
        return
    with fetched_from_mlflow(
        text, python=python, packages=packages, on_progress=on_progress
    ) as found:
        if not found.framework and not onnx:
            raise Misused(f"{found} is already ONNX and needs no conversion")
        yield str(found.path), found.framework or None


@contextmanager
def onnx_on_disk(
    model: Path, *, on_progress: Callable[[str], None] = lambda _: None
) -> Iterator[Path]:
    """Yield the ONNX file of `model`; an MLflow model exists until the end of the block.

    Raises Misused if MLflow does not have the model, or has it in another flavour.
    """
    if not is_mlflow(str(model)):
        yield model
        return
    with fetched_from_mlflow(str(model), on_progress=on_progress) as found:
        if found.framework:
            raise Misused(
                f"{found} is a {found.framework} model: convert it first with: "
                f"cohort convert {found} --out model.onnx"
            )
        yield found.path


def _download(
    uri: str, folder: Path, python: str | None, packages: Sequence[str]
) -> dict[str, str]:
    environment = find_environment(MLFLOW_CLIENT, python=python, packages=packages)
    (folder / "model").mkdir()
    try:
        answer: dict[str, str] = run_job(
            "cohort_prepare.mlflow_child:download",
            {"uri": uri, "folder": folder / "model"},
            python=environment.command,
            environment=preparing_environment(link_packages(folder)),
            limits=JobLimits(DOWNLOAD_SECONDS),
        )
    except JobTimedOut:
        raise Misused(f"{uri} was not downloaded within {DOWNLOAD_SECONDS:g} s") from None
    except JobRaised as error:
        reason = error.sentence.rstrip(".")
        raise Misused(f"cannot download {uri}: {reason}{_hint(reason)}") from error
    except JobCrashed as error:
        raise Rejected(f"MLflow's client failed: {error}\n{error.last_lines}") from None
    return answer


def _hint(error: str) -> str:
    if "No module named" in error:
        return "; add the package of the file store with --with"
    if "RESOURCE_DOES_NOT_EXIST" in error or "INVALID_PARAMETER_VALUE" in error:
        return "; MLFLOW_TRACKING_URI sets the registry"
    return ""


def _find_file(uri: str, folder: Path) -> tuple[Path, str]:
    """Return the file of the best flavour in a downloaded folder, and its framework."""
    try:
        written = parse_yaml(read_text(folder / "MLmodel", "MLmodel") or "", "MLmodel")
    except ConfigProblems as error:
        raise Misused(f"{uri} cannot be read: {error}") from error
    flavors = written.get("flavors") if isinstance(written, dict) else None
    flavors = flavors if isinstance(flavors, dict) else {}
    for flavor, (key, framework) in FLAVORS.items():
        described = flavors.get(flavor)
        if isinstance(described, dict):
            return _inside(uri, folder, str(described.get(key))), framework
    had = ", ".join(sorted(map(str, flavors))) or "none"
    raise Misused(f"{uri} has the flavours {had}; supported: {', '.join(FLAVORS)}")


def _inside(uri: str, folder: Path, name: str) -> Path:
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.exists():
        raise Misused(f"{uri}: MLmodel names {quoted(name)}, which is not in the model's folder")
    return path
