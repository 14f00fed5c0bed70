"""Inputs of models of tables: one block of numbers, or an input per column.

If a fitted scikit-learn pipeline starts with a ColumnTransformer, each column is an input
[rows, 1]. It is text if its first transformer was fitted on text. Otherwise all features are one
input [rows, features].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from cohort_prepare.failures import Misused

BLOCK = "input"
"""Default name of the only input of all features."""

SAMPLE_ROWS = 64
"""Rows of inputs generated from values that a model was fitted on."""

ColumnKind = Literal["float", "int", "text"]


@dataclass(frozen=True, slots=True)
class FittedFeature:
    """An input, or a column of the block.

    name: Its name; "" in a block.
    kind: Type of its values.
    known: Texts or integers that it was fitted on; default: any.
    mean, scale: Statistics of the numbers that it was fitted on; default 0 and 1.
    """

    name: str
    kind: ColumnKind = "float"
    known: Sequence[Any] = ()
    mean: float = 0.0
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Features:
    """Inputs of a model.

    columns: In the model's order.
    block: Name of the only input, which has all columns; "": each column is an input.
    frame: True if the model needs a DataFrame, since its columns have names.
    flat: True if it accepts a list of texts: one column without a second dimension.
    """

    columns: Sequence[FittedFeature]
    block: str = BLOCK
    frame: bool = False
    flat: bool = False

    def rows(self, inputs: Mapping[str, Any]) -> Any:
        """Convert inputs by name to the model's argument. Raises Misused if they do not fit."""
        if self.block:
            if len(inputs) != 1:
                raise Misused(
                    f"the model has one input of {len(self.columns)} features, but "
                    f"{len(inputs)} inputs were given: {', '.join(inputs)}"
                )
            (block,) = inputs.values()
            if self.flat:
                return block.reshape(-1).tolist()
            # As when fitted: some estimators then reject FP32.
            return block.astype(np.float64) if block.dtype.kind == "f" else block
        for one in self.columns:
            if one.name not in inputs:
                raise Misused(f"column {one.name!r} is missing from the inputs")
        arrays = {one.name: np.asarray(inputs[one.name]).reshape(-1) for one in self.columns}
        if self.frame:
            import pandas as pd

            return pd.DataFrame(arrays)
        return np.column_stack([array.astype(object) for array in arrays.values()])

    def sample(self, *, missing: bool = False) -> dict[str, Any]:
        """Make rows from the training data, the same each time, with missing numbers if wanted."""
        random = np.random.default_rng(0)
        made = [_made_up(one, random, missing=missing) for one in self.columns]
        if self.block:
            return {self.block: np.column_stack(made)}
        return {
            one.name: array.reshape(-1, 1) for one, array in zip(self.columns, made, strict=True)
        }


def _made_up(column: FittedFeature, random: np.random.Generator, *, missing: bool) -> Any:
    if column.kind == "text":
        known = np.asarray(column.known or ["", "a", "some text"], object)
        return known[random.integers(0, len(known), SAMPLE_ROWS)]
    if column.kind == "int":
        known = np.asarray(column.known or range(4), np.int64)
        return known[random.integers(0, len(known), SAMPLE_ROWS)]
    numbers = column.mean + 2 * column.scale * random.standard_normal(SAMPLE_ROWS)
    if missing:
        numbers[random.random(SAMPLE_ROWS) < 0.1] = np.nan
    return numbers.astype(np.float32)


def features_of(model: Any, example: Mapping[str, Any]) -> Features:
    """Return the inputs of a fitted estimator or pipeline; an `example` names the block.

    Raises Misused if they are unknown, or the example has other columns.
    """
    table = _table(model)
    if not example:
        return table
    if table.block:
        if len(example) != 1:
            table.rows(example)
        return Features(table.columns, next(iter(example)), table.frame, table.flat)
    return table


def _table(model: Any) -> Features:
    first = _first_step(model)
    if hasattr(first, "transformers_"):
        return _of_column_transformer(first)
    if _takes_text(first):
        return Features([FittedFeature("", "text", _words(first))], flat=True)
    count = getattr(model, "n_features_in_", None)
    if count is None:
        count = getattr(first, "n_features_in_", None)
    if count is None:
        raise Misused(
            f"the number of features of the {type(model).__name__} is unknown: is it fitted?"
        )
    return Features(list(_fitted_on([FittedFeature("")] * int(count), first)))


def _first_step(model: Any) -> Any:
    """Return the first transformer of a pipeline, which may be in a search for settings."""
    for inner in ("best_estimator_", "regressor_"):
        if hasattr(model, inner):
            return _first_step(getattr(model, inner))
    if hasattr(model, "steps"):
        for _, step in model.steps:
            if step not in {None, "passthrough"} if isinstance(step, str) else step is not None:
                return _first_step(step)
    return model


def _telling_step(step: Any) -> Any:
    """Return the step that knows its columns best, for example the one after a text imputer."""
    first = _first_step(step)
    second = step.steps[1][1] if len(getattr(step, "steps", ())) > 1 else first
    is_text = np.asarray(getattr(first, "statistics_", ())).dtype == object
    return second if is_text and hasattr(second, "categories_") else first


def _takes_text(transformer: Any) -> bool:
    return hasattr(transformer, "build_analyzer")


def _words(transformer: Any) -> list[str]:
    words = sorted(getattr(transformer, "vocabulary_", {}))[:40]
    return [" ".join(words[at : at + 3]) for at in range(0, len(words), 3)]


def _of_column_transformer(transformer: Any) -> Features:
    named = hasattr(transformer, "feature_names_in_")
    names = own_names(transformer)
    columns = {name: FittedFeature(name) for name in names}
    used = set()
    for _, step, wanted in transformer.transformers_:
        if isinstance(step, str) and step == "drop":
            continue
        these = names_of(wanted, names)
        used.update(these)
        if isinstance(step, str):  # "passthrough"
            continue
        for column in _fitted_on([columns[name] for name in these], _telling_step(step)):
            columns[column.name] = _stricter(columns[column.name], column)
    kept = [columns[name] for name in names if name in used or not named]
    if not named and all(one.kind == "float" for one in kept):
        return Features(kept)
    return Features(kept, block="", frame=named)


def _stricter(one: FittedFeature, other: FittedFeature) -> FittedFeature:
    return other if other.kind != "float" or one.kind == "float" else one


def own_names(transformer: Any) -> list[str]:
    """Return the column names that a ColumnTransformer was fitted on."""
    if hasattr(transformer, "feature_names_in_"):
        return [str(name) for name in transformer.feature_names_in_]
    return [f"x{place}" for place in range(transformer.n_features_in_)]


def names_of(wanted: Any, names: Sequence[str]) -> list[str]:
    """Return the columns that a part of a ColumnTransformer uses."""
    if isinstance(wanted, str):
        return [wanted]
    if isinstance(wanted, slice):
        start, stop = (
            names.index(end) + after if isinstance(end, str) else end
            for end, after in ((wanted.start, 0), (wanted.stop, 1))
        )
        return list(names[slice(start, stop, wanted.step)])
    found = np.atleast_1d(np.asarray(wanted))
    if found.dtype.kind == "b":
        return [name for name, taken in zip(names, found, strict=True) if taken]
    return [str(one) if found.dtype.kind in "OU" else names[int(one)] for one in found]


def _fitted_on(columns: Sequence[FittedFeature], transformer: Any) -> Iterator[FittedFeature]:
    """Yield the columns with the values that a transformer was fitted on."""
    for place, column in enumerate(columns):
        if _takes_text(transformer):
            yield FittedFeature(column.name, "text", _words(transformer))
            continue
        fitted = getattr(transformer, "categories_", None)
        if fitted is not None:
            yield _of_categories(column.name, np.asarray(fitted[place]))
        elif np.asarray(getattr(transformer, "statistics_", ())).dtype == object:
            yield FittedFeature(column.name, "text", [str(transformer.statistics_[place])])
        else:
            yield FittedFeature(column.name, "float", (), *_spread(transformer, place))


def _of_categories(name: str, values: Any) -> FittedFeature:
    if values.dtype.kind in "OU":
        texts = [one for one in values.tolist() if isinstance(one, str)]
        return FittedFeature(name, "text", texts)
    if values.dtype.kind in "iub":
        return FittedFeature(name, "int", values.tolist())
    return FittedFeature(name)


def _spread(transformer: Any, place: int) -> tuple[float, float]:
    for mean, scale in (("mean_", "scale_"), ("center_", "scale_"), ("data_min_", "data_range_")):
        found = [getattr(transformer, one, None) for one in (mean, scale)]
        if all(one is not None and np.ndim(one) == 1 for one in found):
            return float(found[0][place]), float(found[1][place])  # type: ignore[index]
    return 0.0, 1.0
