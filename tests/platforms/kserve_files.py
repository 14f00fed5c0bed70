"""Compare KServe's objects with the types of its SDK. A test runs this in .venv-clients.

`python kserve_files.py FILE…` prints a line for each field that is unknown or of another type.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kserve import models as kserve_models
from kubernetes.client import models as kubernetes_models
from ruamel.yaml import YAML

KINDS = {"ServingRuntime": "V1alpha1ServingRuntime", "InferenceService": "V1beta1InferenceService"}

PLAIN = {"str": str, "int": int, "float": float, "bool": bool, "object": object}


def problems(value: Any, kind: str, place: str) -> Iterator[str]:
    """Yield the problems of a value that must have a type of the SDK."""
    if listed := re.fullmatch(r"[Ll]ist\[(.+)\]", kind):
        if not isinstance(value, list):
            yield f"{place} must be a list"
            return
        for number, one in enumerate(value):
            yield from problems(one, listed[1], f"{place}[{number}]")
    elif mapped := re.fullmatch(r"[Dd]ict[(\[]str, (.+)[)\]]", kind):
        for key, one in value.items():
            yield from problems(one, mapped[1], f"{place}.{key}")
    elif kind in PLAIN:
        if not isinstance(value, PLAIN[kind]) or (kind == "int" and isinstance(value, bool)):
            yield f"{place} must be of the type {kind}, got {value!r}"
    elif (model := find_model(kind)) is not None:
        fields = {model.attribute_map[name]: one for name, one in model.openapi_types.items()}
        if not isinstance(value, dict):
            yield f"{place} must be an object"
            return
        for key, one in value.items():
            if key in fields:
                yield from problems(one, fields[key], f"{place}.{key}")
            else:
                yield f"{place}.{key} is not a field of {kind}"


def find_model(kind: str) -> Any:
    """Return the class of an object's type; None for a quantity, which is a text or a number."""
    kind = kind.removeprefix("K8sIoApiAppsV1").removeprefix("K8sIoApiCoreV1")
    for models in (kserve_models, kubernetes_models):
        for name in (kind, f"V1{kind}"):
            if hasattr(models, name):
                return getattr(models, name)
    if kind in {"ResourceQuantity", "IntstrIntOrString"}:
        return None
    raise LookupError(kind)


if __name__ == "__main__":
    for file in sys.argv[1:]:
        for document in YAML(typ="safe").load_all(Path(file).read_text()):
            for problem in problems(document, KINDS[document["kind"]], document["kind"]):
                print(f"{Path(file).name}: {problem}")  # noqa: T201
