"""The classes of a classifier's scores, where a model's metadata names them.

The key is `cohort.classes`, and its value JSON: for an output's name, the list of its columns'
classes, texts or whole numbers. `cohort convert` writes it, since tensors have no other place for
them.
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
"""Of the JSON; a longer one is not read."""


def declared_classes(properties: Mapping[str, str]) -> dict[str, Classes]:
    """The classes by output, of those that are named as they should be."""
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
    """The output with its classes, if there is one for each of its columns."""
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
    """The property "classes" of a file, a JSON list; empty where it is not one."""
    written = properties.get("classes", "")
    if not written or len(written) > MAX_CLASSES_CHARACTERS:
        return []
    try:
        classes = json.loads(written)
    except (ValueError, RecursionError):
        return []
    return [str(one) for one in classes] if isinstance(classes, list) else []
