"""The columns of a model's only input [N, columns], each as a separate input for callers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cohort.processing.steps import StepContext
from cohort.tensors import Arrays, TensorSpec


@dataclass(frozen=True, slots=True)
class ColumnBlock:
    """An input whose columns callers send one by one.

    spec: The model's input, which names its columns.
    """

    spec: TensorSpec

    def specs(self) -> Sequence[TensorSpec]:
        """Return an input [N] for each column."""
        rows = self.spec.shape[0] if self.spec.shape else None
        shape = ("N" if rows is None else rows,)
        return [
            replace(self.spec, name=name, shape=shape, columns=()) for name in self.spec.columns
        ]

    def join(self, arrays: Arrays) -> Arrays:
        """Return the arrays with the columns joined to the model's input; other arrays stay."""
        columns = [arrays.pop(name) for name in self.spec.columns]
        return {**arrays, self.spec.name: np.stack(columns, axis=1)}

    def split(self, arrays: Arrays) -> Arrays:
        """Return the columns of the model's input by name."""
        block = arrays[self.spec.name]
        return {name: block[:, place] for place, name in enumerate(self.spec.columns)}

    @property
    def width(self) -> int:
        """The number of columns."""
        return len(self.spec.columns)

    def size(self, rows: int) -> int:
        """Return the bytes of this number of rows."""
        return rows * self.width * self.spec.dtype.itemsize


def find_block(
    inputs: Sequence[TensorSpec], asked: Sequence[str], declared: Sequence[str]
) -> ColumnBlock | None:
    """Return the only input if its columns are configured or declared; None: it stays one input.

    inputs: The required inputs of the model.
    asked: The inputs in the config.
    declared: The columns in the model's metadata.
    """
    if len(inputs) != 1 or not inputs[0].columns:
        return None
    (spec,) = inputs
    own = any(name != spec.name for name in asked)
    return ColumnBlock(spec) if own or not {*spec.columns}.isdisjoint(declared) else None


def with_columns(context: StepContext, spec: TensorSpec) -> TensorSpec:
    """Return the input with the column names from a config. Raises LoadFailed."""
    names = context.config.columns
    if names is None:
        return spec
    if {*names} & {*context.inputs}:
        raise context.problem("columns: a column has the name of an input")
    if spec.shape is None or len(spec.shape) != 2:
        raise context.problem(f"columns: the input has shape {spec.shape_text}, not [N, columns]")
    if len({*names}) != len(names):
        raise context.problem("columns: a name is listed twice")
    if isinstance(spec.shape[1], int) and spec.shape[1] != len(names):
        raise context.problem(
            f"columns: {len(names)} names for an input of {spec.shape[1]} columns, shape "
            f"{spec.shape_text}"
        )
    if len(context.inputs) > 1:
        raise context.problem("columns: the model has other inputs, which are the columns")
    return replace(spec, columns=tuple(names))
