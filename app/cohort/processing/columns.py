"""The columns of a model's only input [N, columns], each as an input of callers of its own."""

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
        """An input for each column, [N]."""
        rows = self.spec.shape[0] if self.spec.shape else None
        shape = ("N" if rows is None else rows,)
        return [
            replace(self.spec, name=name, shape=shape, columns=()) for name in self.spec.columns
        ]

    def join(self, arrays: Arrays) -> Arrays:
        """The model's input, of the columns by name; others stay."""
        columns = [arrays.pop(name) for name in self.spec.columns]
        return {**arrays, self.spec.name: np.stack(columns, axis=1)}

    def split(self, arrays: Arrays) -> Arrays:
        """The columns by name, of the model's input."""
        block = arrays[self.spec.name]
        return {name: block[:, place] for place, name in enumerate(self.spec.columns)}

    @property
    def width(self) -> int:
        """How many columns it has."""
        return len(self.spec.columns)

    def size(self, rows: int) -> int:
        """The bytes of so many rows."""
        return rows * self.width * self.spec.dtype.itemsize


def find_block(
    inputs: Sequence[TensorSpec], asked: Sequence[str], declared: Sequence[str]
) -> ColumnBlock | None:
    """The only input, where something is said of its columns; None: it stays one input.

    inputs: What the model must have.
    asked: The inputs of which a config says something.
    declared: The columns of which the model's metadata does.
    """
    if len(inputs) != 1 or not inputs[0].columns:
        return None
    (spec,) = inputs
    own = any(name != spec.name for name in asked)
    return ColumnBlock(spec) if own or not {*spec.columns}.isdisjoint(declared) else None


def with_columns(context: StepContext, spec: TensorSpec) -> TensorSpec:
    """The input with the names of its columns that a config has. Raises LoadFailed."""
    names = context.config.columns
    if names is None:
        return spec
    if {*names} & {*context.inputs}:
        raise context.problem("columns: a column has the name of an input")
    if spec.shape is None or len(spec.shape) != 2:
        raise context.problem(f"columns: the input has shape {spec.shape_text}, not [N, columns]")
    if len({*names}) != len(names):
        raise context.problem("columns: a name is there twice")
    if isinstance(spec.shape[1], int) and spec.shape[1] != len(names):
        raise context.problem(
            f"columns: {len(names)} names for an input of {spec.shape[1]} columns, shape "
            f"{spec.shape_text}"
        )
    if len(context.inputs) > 1:
        raise context.problem("columns: the model has other inputs, which are the columns")
    return replace(spec, columns=tuple(names))
