"""The classes of a classifier's scores, as declared in a model's metadata.

The key is `cohort.classes`. Its value is a JSON object: each output name has the list of its
columns' classes, which are texts or integers. `cohort convert` writes it, because ONNX tensors
cannot store classes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cohort.session.class_maps import MAX_CLASSES, Classes
from cohort.tensors import TensorSpec

CLASSES_KEY = "cohort.classes"

MAX_CLASSES_CHARACTERS = 1 << 24
"""Maximum length of the JSON; longer JSON is not read."""


def declared_classes(properties: Mapping[str, str]) -> dict[str, Classes]:
    """Return the valid class lists by output name."""
    written = properties.get(CLASSES_KEY, "")
    if not written or len(written) > MAX_CLASSES_CHARACTERS:
        return {}
    try:
        found = json.loads(written)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: classes for name, listed in found.items() if (classes := _classes(listed))}


def with_classes(spec: TensorSpec, declared: Mapping[str, Classes]) -> TensorSpec:
    """Return the output with its classes, if each of its columns has one."""
    classes = declared.get(spec.name, ())
    if not classes or spec.classes or not spec.shape or len(spec.shape) < 2:
        return spec
    columns = spec.shape[-1]
    return replace(spec, classes=classes) if columns in {len(classes), None} else spec


def _classes(listed: Any) -> Classes:
    if not isinstance(listed, list) or len(listed) > MAX_CLASSES:
        return ()
    if all(isinstance(one, str) for one in listed):
        return tuple(listed)
    if all(isinstance(one, int) and not isinstance(one, bool) for one in listed):
        return tuple(listed)
    return ()


def metadata_labels(properties: Mapping[str, str]) -> list[str]:
    """Return the property "classes" of a file, a JSON list; empty if it is not a list."""
    written = properties.get("classes", "")
    if not written or len(written) > MAX_CLASSES_CHARACTERS:
        return []
    try:
        classes = json.loads(written)
    except (ValueError, RecursionError):
        return []
    return [str(one) for one in classes] if isinstance(classes, list) else []
