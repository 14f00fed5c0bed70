"""`cohort optimize`: a model rewritten step by step, each verified and measured on this machine.

`optimize` does it; `OptimizeOptions` say how, `Optimized` what came of it. Every step, and every
measurement, runs in a child process: `worker` is the parent's end, `child` the process itself.
"""

from cohort_prepare.optimizing.choices import MODEL_TYPES, OPTIMIZE_STEPS, TRIED, OptimizeOptions
from cohort_prepare.optimizing.describing import describe_optimized
from cohort_prepare.optimizing.optimizer import Optimized, StepOutcome, optimize

__all__ = [
    "MODEL_TYPES",
    "OPTIMIZE_STEPS",
    "TRIED",
    "OptimizeOptions",
    "Optimized",
    "StepOutcome",
    "describe_optimized",
    "optimize",
]
