"""Assign the numbers made from one column of callers to one or several inputs of the model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cohort.errors import InvalidInput, LoadFailed, quoted
from cohort.processing.steps import StepContext
from cohort.tensors import BY_NAME, Array, Arrays, TensorSpec

MAX_COLUMN_BYTES = 1 << 30
"""Maximum bytes of the inputs made from one column of a request."""


class Features:
    """The inputs of the model that are filled with the numbers of a column.

    A model's input with the column's name gets all numbers, as [N], [N, 1] or [N, numbers].
    Otherwise each number has an input or a column NAME_PART, such as `day_month` for `day`.
    Raises LoadFailed if the model has neither.

    parts: The name of each number.
    optional: Parts that may be absent from the model; default: empty.
    """

    def __init__(
        self, context: StepContext, parts: Sequence[str], optional: Sequence[str] = ()
    ) -> None:
        own = context.inputs.get(context.name)
        self._name = context.name
        self._whole = own
        self._parts: list[tuple[int, TensorSpec]] = []
        if own is not None:
            _check_width(context, own, len(parts))
        for place, part in enumerate(() if own is not None else parts):
            spec = context.inputs.get(f"{context.name}_{part}")
            if spec is not None:
                _check_width(context, spec, 1)
                self._parts.append((place, spec))
            elif part not in optional:
                raise _no_input(context, part)
        if own is None and not self._parts:
            raise _no_input(context, parts[-1])
        self.specs = [own] if own is not None else [spec for _, spec in self._parts]
        self.fills = [spec.name for spec in self.specs]
        self.width = len(parts)
        first = self.specs[0].shape
        self.rows: int | str = first[0] if first and first[0] is not None else "N"
        self.takes_nan = all(BY_NAME[spec.datatype].kind == "float" for spec in self.specs)

    def holds(self, number: float) -> bool:
        """Return True if the model's datatypes represent this whole number exactly."""
        return bool(self.held(np.full((1, self.width), float(number))).all())

    def held(self, numbers: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return a mask of the numbers [N, parts] that the model's datatypes represent exactly.

        NaN counts as exact.
        """
        found = np.isnan(numbers)
        places = [(slice(None), self._whole)] if self._whole is not None else self._parts
        for place, spec in places:
            part = numbers[:, place]
            with np.errstate(over="ignore", invalid="ignore"):
                found[:, place] |= part.astype(spec.dtype).astype(np.float64) == part
        return found

    @property
    def datatypes(self) -> str:
        """The datatypes that the model accepts."""
        return ", ".join(dict.fromkeys(spec.datatype for spec in self.specs))

    def size(self, rows: int) -> int:
        """Return the bytes of the inputs for these rows. Raises InvalidInput if too many."""
        size = rows * sum(
            (self.width if spec is self._whole else 1) * spec.dtype.itemsize for spec in self.specs
        )
        if size > MAX_COLUMN_BYTES:
            raise InvalidInput(
                f"input {quoted(self._name)}: its {rows} rows need {size:,} bytes; the "
                f"limit per request is {MAX_COLUMN_BYTES:,} bytes"
            )
        return size

    def one_hot(self, codes: NDArray[np.float64]) -> Arrays:
        """Return the model's inputs with 1 for the code of each row, [N], and 0 elsewhere.

        All numbers of a row with code -1 are 0.
        """
        if self._whole is None:
            return {
                spec.name: self._shaped(spec, (codes == place).astype(spec.dtype))
                for place, spec in self._parts
            }
        made = np.zeros((len(codes), self.width), self._whole.dtype)
        known = np.flatnonzero(codes >= 0)
        made[known, codes[known].astype(np.int64)] = 1
        return {self._whole.name: made}

    def fill(self, numbers: Array) -> Arrays:
        """Return the model's inputs with the numbers [N, parts]."""
        if self._whole is not None:
            return {self._whole.name: self._shaped(self._whole, numbers.astype(self._whole.dtype))}
        return {
            spec.name: self._shaped(spec, numbers[:, place].astype(spec.dtype))
            for place, spec in self._parts
        }

    @staticmethod
    def _shaped(spec: TensorSpec, numbers: Array) -> Array:
        wide = spec.shape is not None and len(spec.shape) == 2
        return numbers.reshape(len(numbers), -1) if wide else numbers.reshape(len(numbers))


def check_text(values: Array, name: str) -> None:
    """Raise InvalidInput if elements of a BYTES input are not text."""
    if values.dtype.type is np.void:
        raise InvalidInput(f"input {quoted(name)} must be text, got bytes that are not UTF-8")


def _check_width(context: StepContext, spec: TensorSpec, width: int) -> None:
    datatype = BY_NAME.get(spec.datatype)
    if datatype is None or datatype.kind not in {"float", "int"} or datatype.packed:
        raise context.problem(f"the model's input {spec.name} is {spec.datatype}, not numbers")
    shape = spec.shape
    fits = shape is not None and (
        (len(shape) == 1 and width == 1) or (len(shape) == 2 and shape[1] in {width, None})
    )
    if not fits and not (shape is not None and len(shape) == 2 and isinstance(shape[1], str)):
        raise context.problem(
            f"each row becomes {width} number{'s' if width > 1 else ''}, but the model's input "
            f"{spec.name} has shape {spec.shape_text}"
        )


def _no_input(context: StepContext, part: str) -> LoadFailed:
    there = ", ".join([*context.inputs][:8])
    neither = f"neither an input {context.name} nor {context.name}_{part}"
    return context.problem(
        f"the model has {neither if part else 'no such input'}; available: {there}"
    )
