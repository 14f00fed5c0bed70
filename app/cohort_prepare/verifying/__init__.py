"""`cohort verify`: whether a model gives what its source gives, by how much not, and why not.

Both are run on the same cases (`inputs`), what they give is matched (`pairing`) and measured
(`comparison`) by a criterion that depends on what the model computes in (`tolerance`). Where they
differ, simple tests look for what is behind it (`diagnosis`). `verify_model` does all of it;
`compare_models` compares any two.
"""

from cohort_prepare.evaluating.accuracy import PairedAccuracy
from cohort_prepare.evaluating.generated import Case, generated_cases, given_cases
from cohort_prepare.evaluating.graph_hints import GraphHints, read_hints
from cohort_prepare.verifying.comparison import (
    ComparedCase,
    Verification,
    compare_models,
    session_run,
)
from cohort_prepare.verifying.plot import draw_differences
from cohort_prepare.verifying.tolerance import Allowed, allowed_for
from cohort_prepare.verifying.verifier import Verified, verify_model, write_worst

__all__ = [
    "Allowed",
    "Case",
    "ComparedCase",
    "GraphHints",
    "PairedAccuracy",
    "Verification",
    "Verified",
    "allowed_for",
    "compare_models",
    "draw_differences",
    "generated_cases",
    "given_cases",
    "read_hints",
    "session_run",
    "verify_model",
    "write_worst",
]
