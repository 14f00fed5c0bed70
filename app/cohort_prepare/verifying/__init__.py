"""`cohort verify`: compare a model with its source, and look for the cause of differences.

Both run on the same cases. `comparison` measures their outputs by a criterion that depends on the
datatype of the computation (`tolerance`). If they differ, `diagnosis` runs simple tests to find the
cause. `verify_model` does all of it; `compare_models` compares any two models.
"""

from cohort_prepare.verifying.comparison import ComparedCase, Verification, compare_models
from cohort_prepare.verifying.plot import draw_differences
from cohort_prepare.verifying.tolerance import Allowed
from cohort_prepare.verifying.verifier import Verified, verify_model, write_worst

__all__ = [
    "Allowed",
    "ComparedCase",
    "Verification",
    "Verified",
    "compare_models",
    "draw_differences",
    "verify_model",
    "write_worst",
]
