"""The maximum bytes of outputs of one request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from cohort.batching.stacking import Outputs
from cohort.errors import InvalidInput
from cohort.tensors import BY_NAME, TensorSpec, held_bytes


@dataclass(frozen=True, slots=True)
class OutputLimit:
    """A limit on the outputs of a request.

    max_bytes: Bytes of all outputs together.
    max_rows: The rows with that many bytes, if the specs determine it; more are refused before they
        run.
    measured: True if outputs are measured after the run; otherwise their size follows from the
        rows.
    """

    max_bytes: float = float("inf")
    max_rows: float = float("inf")
    measured: bool = False

    def check_rows(self, rows: int) -> None:
        """Raise InvalidInput if the outputs of this number of rows are over the limit."""
        if rows > self.max_rows:
            raise InvalidInput(
                f"the outputs of {rows} rows would take more than {self._limit()}; "
                f"send at most {int(self.max_rows)} rows"
            )

    def checked(self, outputs: Outputs) -> Outputs | InvalidInput:
        """Return the outputs of a request, or an error if they are over the limit."""
        size = sum([held_bytes(one) for one in outputs if hasattr(one, "dtype")])  # no sequences
        if size <= self.max_bytes:
            return outputs
        return InvalidInput(f"the outputs take {size / 2**20:.1f} MB, more than {self._limit()}")

    def _limit(self) -> str:
        return f"{self.max_bytes / 2**20:g} MB (max_output_mb)"


def limit_outputs(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], max_bytes: float
) -> OutputLimit:
    """Return the limit for a model with these specs: by rows if outputs have those of an input."""
    rows = {spec.shape[0] for spec in inputs if spec.shape and spec.rows_vary}
    row_bytes = 0
    for spec in outputs:
        if not spec.transportable:
            continue
        shape, datatype = spec.shape or (None,), BY_NAME[spec.datatype]
        sizes = [size for size in shape[1:] if isinstance(size, int)]
        known = shape[0] is not None and shape[0] in rows and len(sizes) == len(shape) - 1
        if not known or datatype.kind == "text":
            return OutputLimit(max_bytes, measured=True)
        row_bytes += prod(sizes) * datatype.dtype.itemsize
    return OutputLimit(max_bytes, max_bytes // row_bytes if row_bytes else float("inf"))


NO_LIMIT = OutputLimit()
