"""Input metadata declared by a model: column names, missing values, categories.

All three keys have JSON values. `feature_names` lists the columns of the only input,
[rows, columns], in order. `cohort.missing` maps an input name to the text or number that represents
a missing value. `cohort.categories` maps the name of an input or column to a list of words or
numbers; the model takes their positions as codes. `cohort convert` writes the keys, because ONNX
tensors cannot store this metadata.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cohort.tensors import BY_NAME, TensorSpec

COLUMNS_KEY = "feature_names"
MISSING_KEY = "cohort.missing"
CATEGORIES_KEY = "cohort.categories"

MAX_CHARACTERS = 1 << 22
"""Maximum length of the JSON; longer JSON is not read."""


def declared_inputs(
    specs: Sequence[TensorSpec], properties: Mapping[str, str]
) -> tuple[TensorSpec, ...]:
    """Return the inputs with their metadata; metadata that does not fit an input is ignored."""
    if COLUMNS_KEY not in properties and MISSING_KEY not in properties:
        return tuple(specs)
    names = _read(properties.get(COLUMNS_KEY, ""))
    missing = _read(properties.get(MISSING_KEY, ""))
    made = [
        replace(spec, missing=missing[spec.name])
        if isinstance(missing, dict) and _fits(missing.get(spec.name), spec)
        else spec
        for spec in specs
    ]
    if len(made) == 1 and _are_columns(names, made[0]):
        return (replace(made[0], columns=tuple(names)),)
    return tuple(made)


def declared_categories(
    properties: Mapping[str, str],
) -> dict[str, tuple[str, ...] | tuple[float, ...]]:
    """Return the valid category lists by input or column name."""
    found = _read(properties.get(CATEGORIES_KEY, ""))
    if not isinstance(found, dict):
        return {}
    return {name: tuple(listed) for name, listed in found.items() if _are_categories(listed)}


def _are_categories(listed: Any) -> bool:
    if not isinstance(listed, list) or not listed:
        return False
    words = all(isinstance(one, str) for one in listed)
    numbers = all(type(one) in (int, float) for one in listed)
    return (words or numbers) and len({*listed}) == len(listed)


def _read(text: str) -> Any:
    if len(text) > MAX_CHARACTERS:
        return None
    try:
        return json.loads(text or "null")
    except (ValueError, RecursionError):
        return None


def _are_columns(names: Any, spec: TensorSpec) -> bool:
    if not isinstance(names, list) or spec.shape is None or len(spec.shape) != 2:
        return False
    if not all(isinstance(name, str) for name in names) or len({*names}) != len(names):
        return False
    return spec.shape[1] == len(names)


def _fits(value: Any, spec: TensorSpec) -> bool:
    kind = BY_NAME[spec.datatype].kind if spec.transportable else ""
    if isinstance(value, bool):
        return False
    if kind == "text":
        return isinstance(value, str)
    if kind == "float":
        return isinstance(value, int | float)
    return kind == "int" and isinstance(value, int)
