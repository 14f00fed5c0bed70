"""The process that has a framework: `python -m cohort_prepare.frameworks.child JOB ANSWER`.

Reads one job from a file of JSON, and writes what came of it into another. What the framework and
the user's module print goes to this process's own stdout and stderr.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Any

import numpy as np

from cohort.errors import CohortError
from cohort_prepare.failures import Misused
from cohort_prepare.frameworks import (
    FRAMEWORKS,
    Adapter,
    ExportRequest,
    Framework,
    Reference,
    adapter_of,
)
from cohort_prepare.frameworks.callables import MissingModule, load_object


def do_job(job_file: str, answer_file: str) -> None:
    """Do one job. Its answer has `error` and `kind` where it failed."""
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    reference = Reference(**job["reference"])
    framework = FRAMEWORKS.get(job["framework"])
    adapter = adapter_of(framework) if framework else None
    for module in framework.modules if framework else ():
        with suppress(ImportError):  # said by what needs it
            import_module(module)  # before the user's folder is looked at, which may have its own
    _forget_cohort(job["folder"])
    try:
        if framework is None or adapter is None:
            answer = _look(reference)
        else:
            answer = _TASKS[job["task"]](adapter, adapter.load(reference), job)
            answer["versions"] = _versions(framework)
    except CohortError as error:
        kind = "misused" if isinstance(error, Misused) else "rejected"
        answer = {"kind": kind, "error": str(error)}
    except Exception as error:  # noqa: BLE001 - whatever a framework and the user's code raise
        traceback.print_exc()
        answer = {"kind": "crashed", "error": _sentence(error)}
    Path(answer_file).write_text(json.dumps(answer), encoding="utf-8")


def _look(reference: Reference) -> dict[str, Any]:
    """The top modules of the classes of the model, the closest first; or a package it lacks."""
    try:
        model = load_object(reference)
    except MissingModule as error:
        return {"missing": error.module, "says": str(error)}
    if isinstance(model, tuple) and model:
        model = model[0]  # with example inputs
    modules = [one.__module__.split(".")[0] for one in type(model).__mro__]
    return {"packages": list(dict.fromkeys(modules)), "what": type(model).__name__}


def _export(adapter: Adapter, model: Any, job: Mapping[str, Any]) -> dict[str, Any]:
    example = _read(job["example"]) if job["example"] else {}
    request = ExportRequest(job["out"], job["opset"], example, job["options"])
    exported = adapter.export(model, request)
    return {
        "what": exported.what,
        "notes": list(exported.notes),
        "classes": {name: list(classes) for name, classes in exported.classes.items()},
        "sample": _write(job["sample"], exported.sample),
    }


def _run(adapter: Adapter, model: Any, job: Mapping[str, Any]) -> dict[str, Any]:
    """Run each case; why it failed, or ""."""
    failures = []
    for case, result in zip(job["cases"], job["results"], strict=True):
        try:
            _write(result, adapter.run(model, _read(case)))
        except Exception as error:  # noqa: BLE001 - as above
            traceback.print_exc()
            failures.append(str(error) if isinstance(error, CohortError) else _sentence(error))
        else:
            failures.append("")
    return {"failures": failures}


_TASKS: Mapping[str, Callable[[Adapter, Any, Mapping[str, Any]], dict[str, Any]]] = {
    "export": _export,
    "run": _run,
}


def _read(path: str) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return {n: a.astype(object) if a.dtype.kind == "U" else a for n, a in arrays.items()}


def _write(path: str, values: Mapping[str, Any]) -> bool:
    """Write arrays where there are some; whether there were."""
    arrays = {name: _plain(np.asarray(value)) for name, value in values.items()}
    if arrays:
        np.savez(path, **arrays)
    return bool(arrays)


def _plain(array: Any) -> Any:
    return array.astype(str) if array.dtype == object else array


def _forget_cohort(folder: str) -> None:
    """Let the user's module import a package of its own that is called `app`, too."""
    sys.path[:] = [str(Path.cwd()), *(path for path in sys.path if path not in {folder, ""})]
    for name in [name for name in sys.modules if name.split(".")[0] == "app"]:
        del sys.modules[name]


def _versions(framework: Framework) -> dict[str, str]:
    """The versions of what the adapter uses, by the packages' names."""
    packages = packages_distributions()
    found = {}
    for module in framework.modules:
        for package in packages.get(module, [module])[:1]:
            try:
                found[package] = version(package)
            except PackageNotFoundError:
                continue
    return found


def _sentence(error: Exception) -> str:
    """What went wrong, on one line, with the kind of error."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:1000]}"


if __name__ == "__main__":
    do_job(*sys.argv[1:])
