"""`cohort verify`: whether a model gives what its source gives, by how much not, and why not.

Both are run on the same cases, and what they give is measured (`comparison`) by a criterion that
depends on what the model computes in (`tolerance`). Where they differ, simple tests look for what
is behind it (`diagnosis`). `verify_model` does all of it; `compare_models` compares any two.
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
