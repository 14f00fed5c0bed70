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
"""Its client alone, without the server."""

DOWNLOAD_SECONDS = 3600.0

MODEL_URI = re.compile(r"models:/[^/@\s]+(/[0-9]{1,18}|@[^/@\s]+)")

FLAVORS: Mapping[str, tuple[str, str]] = {
    "onnx": ("data", ""),
    "sklearn": ("pickled_model", "sklearn"),
}
"""The flavours of MLflow that are taken, the best first: which key of a flavour has its file, and
the framework of that, as `--from` has it."""


@dataclass(frozen=True, slots=True)
class MlflowModel:
    """A model that was downloaded from an MLflow registry.

    name, version: As MLflow has them.
    run_id: Of the run that made it; may be empty.
    path: Its file: ONNX, or what `cohort convert` takes.
    framework: As `--from` has it; empty for ONNX.
    """

    name: str
    version: str
    run_id: str
    path: Path
    framework: str

    def __str__(self) -> str:
        return f"models:/{self.name}/{self.version}"


def is_mlflow(text: str) -> bool:
    """Whether `text` means a model of an MLflow registry."""
    return text.startswith("models:/")


@contextmanager
def fetched_from_mlflow(
    uri: str,
    *,
    python: str | None = None,
    packages: Sequence[str] = (),
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[MlflowModel]:
    """Download a model into a folder that lasts as long as the block.

    uri: `models:/name/version` or `models:/name@alias`, in the registry that MLFLOW_TRACKING_URI
        names; MLflow's own variables say who asks.
    python: The user's own interpreter; default None: this one where it has MLflow, or one by uv.
    packages: What the registry's store of files needs besides, such as boto3; default nothing.
    say: Told what is done now.

    Raises Misused where there is no such model, or none that is taken.
    """
    if not MODEL_URI.fullmatch(uri):
        raise Misused(
            f"{quoted(uri)} is no model of MLflow: it is models:/NAME/VERSION or models:/NAME@ALIAS"
        )
    if not os.environ.get("MLFLOW_TRACKING_URI"):
        raise Misused(
            f"{uri}: MLFLOW_TRACKING_URI has to say where MLflow is, such as http://mlflow:5000"
        )
    with tempfile.TemporaryDirectory(prefix="cohort-mlflow-") as name:
        folder = Path(name)
        say(f"Fetching {uri}")
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
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[tuple[str, str | None]]:
    """What a command is to open in place of `text`, and of which framework.

    onnx: Whether it may be ONNX; default no.

    That of a registered model of MLflow is as long there as the block lasts; all else is itself.
    The rest is as in `fetched_from_mlflow`. Raises Misused.
    """
    if not is_mlflow(text):
        yield text, framework
        return
    with fetched_from_mlflow(text, python=python, packages=packages, say=say) as found:
        if not found.framework and not onnx:
            raise Misused(f"{found} is ONNX already, and needs no conversion")
        yield str(found.path), found.framework or None


@contextmanager
def onnx_on_disk(model: Path, *, say: Callable[[str], None] = lambda _: None) -> Iterator[Path]:
    """The ONNX file that is meant by `model`; one of MLflow's lasts as long as the block.

    Raises Misused where MLflow has no such model, or has it in another flavour.
    """
    if not is_mlflow(str(model)):
        yield model
        return
    with fetched_from_mlflow(str(model), say=say) as found:
        if found.framework:
            raise Misused(
                f"{found} is a model of {found.framework}: cohort convert {found} --out model.onnx "
                "makes what can be published"
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
        raise Misused(f"{uri} could not be downloaded within {DOWNLOAD_SECONDS:g} s") from None
    except JobRaised as error:
        reason = error.sentence.rstrip(".")
        raise Misused(f"{uri} cannot be had: {reason}{_hint(reason)}") from error
    except JobCrashed as error:
        raise Rejected(f"MLflow's client failed: {error}\n{error.last_lines}") from None
    return answer


def _hint(error: str) -> str:
    if "No module named" in error:
        return "; --with PACKAGE adds what the store of its files needs"
    if "RESOURCE_DOES_NOT_EXIST" in error or "INVALID_PARAMETER_VALUE" in error:
        return "; MLFLOW_TRACKING_URI says in which registry it was looked for"
    return ""


def _find_file(uri: str, folder: Path) -> tuple[Path, str]:
    """The file of the best flavour in a downloaded folder, and its framework."""
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
    raise Misused(f"{uri} has the flavours {had}; taken are {', '.join(FLAVORS)}")


def _inside(uri: str, folder: Path, name: str) -> Path:
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.exists():
        raise Misused(f"{uri}: MLmodel names {quoted(name)}, which is not in the model's folder")
    return path
