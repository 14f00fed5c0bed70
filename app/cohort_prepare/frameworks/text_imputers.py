"""Text imputers in a scikit-learn pipeline, which ONNX has no operator for.

A tensor of text has no missing values. So an imputer at the start of a column's branch is removed,
and the server fills in its value instead (`cohort.missing` in the model's metadata).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from cohort_prepare.failures import Rejected
from cohort_prepare.frameworks.tables import Features, names_of, own_names


def is_text_imputer(step: Any) -> bool:
    """Return True for a fitted SimpleImputer of text whose missing value is not text."""
    if not hasattr(step, "statistics_") or not hasattr(step, "missing_values"):
        return False
    return np.asarray(step.statistics_).dtype == object and not isinstance(step.missing_values, str)


def without_text_imputers(model: Any, table: Features) -> tuple[Any, dict[str, str]]:
    """Return a copy of a fitted model without text imputers, and their values by input.

    Returns the model itself if it has no such imputers. Raises Rejected for imputers that cannot
    be removed.
    """
    if not any(True for _ in _imputers(model)):
        return model, {}
    changed = copy.deepcopy(model)
    missing: dict[str, str] = {}
    for column_transformer, place in _branches(changed):
        name, step, wanted = column_transformer.transformers_[place]
        head = _head(step)
        if not is_text_imputer(head):
            continue
        _check(head, name)
        columns = names_of(wanted, own_names(column_transformer))
        for column, fill in zip(columns, head.statistics_, strict=True):
            missing[column] = str(fill)
        column_transformer.transformers_[place] = (name, _without_head(step), wanted)
    if not missing and hasattr(changed, "steps") and is_text_imputer(changed.steps[0][1]):
        missing = _of_block(changed, table)
    left = next(_imputers(changed), None)
    if left is not None:
        raise Rejected(
            f"step {left[0]!r} is a SimpleImputer of text after other steps, which ONNX does not "
            "support: put it first, before the step that reads its column"
        )
    return changed, missing


def check_filled(run: Any, rows: Any, missing: Mapping[str, str]) -> None:
    """Raise Rejected unless rows with gaps give the same as rows with filled gaps.

    run: Runs the model on rows; returns outputs by name.
    rows: A DataFrame with every column and no gaps.
    """
    for column, fill in missing.items():
        gaps, filled = rows.copy(), rows.copy()
        gaps[column] = np.array([np.nan] * len(rows), object)
        filled[column] = np.array([fill] * len(rows), object)
        found, wanted = run(gaps), run(filled)
        for name, array in found.items():
            same = array == wanted[name]
            if not np.all(same | ((array != array) & (wanted[name] != wanted[name]))):  # noqa: PLR0124
                raise Rejected(
                    f"column {column!r} goes to several steps, of which one fills its gaps and "
                    "another reads them: impute it in a separate pipeline for each"
                )


def _check(imputer: Any, name: str) -> None:
    if getattr(imputer, "add_indicator", False):
        raise Rejected(
            f"step {name!r} has a SimpleImputer of text with add_indicator, but ONNX text has no "
            "missing values. Fit it without, or add a column of 0 and 1 before the model"
        )


def _of_block(changed: Any, table: Features) -> dict[str, str]:
    """Remove an imputer of all columns at the start of a pipeline; return its value."""
    name, head = changed.steps[0]
    _check(head, name)
    fills = {str(one) for one in head.statistics_}
    if len(fills) > 1:
        raise Rejected(
            f"step {name!r} fills the columns of one input with different texts: start the model "
            "with a ColumnTransformer, so that each column is an input"
        )
    if len(changed.steps) == 1:
        raise Rejected("the model is only a SimpleImputer of text, which ONNX does not support")
    changed.steps.pop(0)
    return {table.block: fills.pop()}


def _imputers(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the remaining text imputers of a model, with the names of their steps."""
    for name, step in getattr(model, "steps", ()):
        if is_text_imputer(step):
            yield name, step
        yield from _imputers(step)
    for name, step, _ in getattr(model, "transformers_", ()):
        if is_text_imputer(step):
            yield name, step
        yield from _imputers(step)
    for inner in ("best_estimator_", "regressor_"):
        if hasattr(model, inner):
            yield from _imputers(getattr(model, inner))


def _branches(model: Any) -> Iterator[tuple[Any, int]]:
    """Yield the branches of the ColumnTransformer at a model's start."""
    for inner in ("best_estimator_", "regressor_"):
        if hasattr(model, inner):
            yield from _branches(getattr(model, inner))
            return
    if hasattr(model, "transformers_"):
        for place in range(len(model.transformers_)):
            yield model, place
    elif getattr(model, "steps", None):
        yield from _branches(model.steps[0][1])


def _head(step: Any) -> Any:
    return step.steps[0][1] if hasattr(step, "steps") else step


def _without_head(step: Any) -> Any:
    if not hasattr(step, "steps") or len(step.steps) == 1:
        return "passthrough"
    step.steps.pop(0)
    return step
