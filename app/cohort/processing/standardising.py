"""`inputs.<name>.standardise`: numbers minus a mean, divided by a standard deviation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cohort.processing.steps import Check, StepContext
from cohort.tensors import BY_NAME, Array, Arrays

FEW_NUMBERS = 1 << 14
"""Maximum numbers to convert on the event loop, which takes less than 0.1 ms."""


class StandardiseStep:
    """A `Step` that subtracts a mean and divides by a deviation, in FP64. Raises LoadFailed."""

    def __init__(self, context: StepContext) -> None:
        config = context.config.standardise
        assert config is not None  # noqa: S101 - the step requires this key
        spec = context.model_input()
        datatype = BY_NAME.get(spec.datatype)
        if datatype is None or datatype.kind != "float" or not datatype.numpy_native:
            raise context.problem(f"standardise: the model expects {spec.datatype}, not floats")
        self._mean: NDArray[np.float64] = np.array(config.mean, np.float64)
        self._std: NDArray[np.float64] = np.array(config.std, np.float64)
        shape = spec.shape or ()
        width = shape[-1] if len(shape) > 1 else 1
        for key, numbers in (("mean", self._mean), ("std", self._std)):
            if numbers.ndim and isinstance(width, int) and len(numbers) != width:
                raise context.problem(
                    f"standardise: {len(numbers)} numbers in {key} for {width} columns, shape "
                    f"{spec.shape_text}"
                )
        if not np.all(self._std):
            raise context.problem("standardise: std must not be 0")
        self._name, self._dtype = spec.name, spec.dtype
        self.spec = spec
        self.fills: Sequence[str] = [spec.name]
        sizes = [size if isinstance(size, int) else 1 for size in shape]
        self.example: Array = np.broadcast_to(self._mean, sizes).astype(spec.dtype)
        few = [
            f"{numbers:g}" if not numbers.ndim else f"[{', '.join(f'{n:g}' for n in numbers[:4])}]"
            for numbers in (self._mean, self._std)
        ]
        self.description = f"less {few[0]}, divided by {few[1]}"

    def is_short(self, values: Array) -> bool:
        """Return True if there are few numbers."""
        return values.size <= FEW_NUMBERS

    def prepared_bytes(self, values: Array, check: Check) -> int:
        """Return the bytes of the numbers and of their FP64 copy."""
        del check
        return values.nbytes + 8 * values.size

    def prepare(self, values: Array, check: Check) -> Arrays:
        """Return the model's input."""
        del check  # it is not slower than a copy
        exact = values.astype(np.float64)
        with np.errstate(over="ignore"):
            exact -= self._mean
            exact /= self._std
            return {self._name: exact.astype(self._dtype)}

    def undo(self, arrays: Arrays) -> Array | None:
        """Return the numbers before standardisation; None if the input is not in `arrays`."""
        if self._name not in arrays:
            return None
        made = arrays[self._name].astype(np.float64) * self._std + self._mean
        return made.astype(self._dtype)
