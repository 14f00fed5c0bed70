"""Check that a request gets the same bits alone and in any shared run.

Independent rows may be rounded differently in a run of another size, or at another place in it.
`kernels` knows the ONNX Runtime kernels that do that, from a table that `make rounding` writes.
`try_bits` checks a version with the session that serves it.
"""

from cohort.profiling.exactness.experiment import Exactness, same_bytes, try_bits
from cohort.profiling.exactness.kernels import (
    TABLE,
    RoundingKernel,
    instruction_set,
    rounding_kernels,
)

__all__ = [
    "TABLE",
    "Exactness",
    "RoundingKernel",
    "instruction_set",
    "rounding_kernels",
    "same_bytes",
    "try_bits",
]
