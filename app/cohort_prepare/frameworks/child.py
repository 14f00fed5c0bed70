"""Jobs of the process that has a framework: `inspect`, `export` and `run`.

One process runs all jobs of a model (`SourceModel`), which it loads once.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Any

from cohort.errors import CohortError
from cohort_prepare.frameworks import (
    ANY_FRAMEWORK,
    FRAMEWORKS,
    Adapter,
    ExportRequest,
    Framework,
    Reference,
    adapter_of,
)
from cohort_prepare.frameworks.callables import MissingModule, load_object


def inspect(reference: Mapping[str, Any]) -> dict[str, Any]:
    """Return the packages of the model's class and its base classes, or a missing package."""
    _import(ANY_FRAMEWORK)
    try:
        model = load_object(Reference(**reference))
    except MissingModule as error:
        return {"missing": error.module, "message": str(error)}
    if isinstance(model, tuple) and model:
        model = model[0]  # with example inputs
    modules = [one.__module__.split(".")[0] for one in type(model).__mro__]
    return {"packages": list(dict.fromkeys(modules)), "what": type(model).__name__}


def export(
    reference: Mapping[str, Any],
    framework: str,
    *,
    out: str,
    opset: int | None,
    example: str,
    options: Mapping[str, Any],
    sample: str,
) -> dict[str, Any]:
    """Export the model to `out` and sample inputs to `sample`; return fields of `SourceExport`."""
    adapter, model = _load(framework, Reference(**reference))
    given = _read(example) if example else {}
    exported = adapter.export(model, ExportRequest(out, opset, given, options))
    return {
        "what": exported.what,
        "notes": list(exported.notes),
        "classes": {name: list(classes) for name, classes in exported.classes.items()},
        "sample": _write(sample, exported.sample),
        "columns": list(exported.columns),
        "missing": dict(exported.missing),
        "categories": {name: list(known) for name, known in exported.categories.items()},
        "files": list(exported.files),
        "config": dict(exported.config),
        "versions": _versions(FRAMEWORKS[framework]),
    }


def run(
    reference: Mapping[str, Any], framework: str, *, cases: Sequence[str], results: Sequence[str]
) -> list[str]:
    """Run each case and write its result; return the reason of each failure, or ""."""
    adapter, model = _load(framework, Reference(**reference))
    failures = []
    for case, result in zip(cases, results, strict=True):
        try:
            _write(result, adapter.run(model, _read(case)))
        except Exception as error:  # noqa: BLE001 - any error of a framework or the user's code
            traceback.print_exc()
            failures.append(str(error) if isinstance(error, CohortError) else _sentence(error))
        else:
            failures.append("")
    return failures


@cache  # another call of the user's function may return another model
def _load(framework: str, reference: Reference) -> tuple[Adapter, Any]:
    """Load the model. Raises errors of the framework and the user's code."""
    _import(FRAMEWORKS[framework])
    adapter = adapter_of(FRAMEWORKS[framework])
    return adapter, adapter.load(reference)


def _import(framework: Framework) -> None:
    """Import a framework before the user's modules, which may have the same names."""
    here = str(Path.cwd())
    sys.path[:] = [path for path in sys.path if path not in {here, ""}]
    for module in framework.modules:
        with suppress(ImportError):  # reported where it is needed
            import_module(module)
    if framework.adapter:
        adapter_of(framework)
    sys.path.insert(0, here)


def _read(path: str) -> dict[str, Any]:
    import numpy as np  # an environment that only looks at a model may lack it

    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return {n: a.astype(object) if a.dtype.kind == "U" else a for n, a in arrays.items()}


def _write(path: str, values: Mapping[str, Any]) -> bool:
    """Write arrays, if there are any; return True if there were."""
    import numpy as np

    arrays = {name: _plain(np.asarray(value)) for name, value in values.items()}
    if arrays:
        np.savez(path, **arrays)
    return bool(arrays)


def _plain(array: Any) -> Any:
    return array.astype(str) if array.dtype == object else array


def _versions(framework: Framework) -> dict[str, str]:
    """Return the versions of the packages that the adapter uses."""
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
    """Format an error and its type on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:1000]}"
