"""`cohort optimize`: rewrite a model step by step, verifying and measuring each on this machine.

`optimize` takes `OptimizeOptions` and returns `Optimized`. Steps and measurements (`tasks`) run in
child processes, which `worker` starts.
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
