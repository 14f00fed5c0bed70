"""Whether callers get the very bits that they get alone, whatever shares their run.

Rows that do not influence each other may be rounded in another way in a run of another size, or at
another place in it. `kernels` knows which kernels of ONNX Runtime do that, from a table that a tool
writes (`make rounding`), and `try_bits` tries a version with the session that serves it.
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
