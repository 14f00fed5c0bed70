"""What a model's metadata says of its inputs: names of columns, missing values, categories.

`feature_names` is JSON: the names of the columns of the only input, [rows, columns], in their
order. `cohort.missing` is JSON, too: for an input's name, the text or number that stands for a
missing value. So is `cohort.categories`: for the name of an input, or of a column, the list of the
words or numbers whose places are the codes that the model takes. `cohort convert` writes them,
since tensors have no other place for that.
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
"""Of the JSON; a longer one is not read."""


def declared_inputs(
    specs: Sequence[TensorSpec], properties: Mapping[str, str]
) -> tuple[TensorSpec, ...]:
    """The inputs, with what metadata says of them; what does not fit them counts for nothing."""
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
    """The categories by input or column, of those that are listed as they should be."""
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
