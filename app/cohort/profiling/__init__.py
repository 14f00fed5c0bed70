"""Measure the duration of a model's runs and check that its rows may share a run.

The benefit of batching depends on the model and the machine, so it is measured. Runs of
n = 1, 2, 4, … rows are timed. The smallest n within 10 % of the best rows per second is chosen.

The correctness of batching depends on the model alone. In a dynamically quantized model, an
outlier row changes its neighbours' outputs. So rows of mixed scale are run in one batch and one by
one. Requests share runs only if the outputs agree.

`find_trial` finds inputs to run a model with. `profile_briefly` measures at load within a time
limit. `profile_model` measures everything in idle moments. Profiles are kept under the cache folder
(docs/contributing/decisions/0017).
"""

from cohort.profiling.concurrency import ConcurrentRuns, best_concurrency, measure_concurrency
from cohort.profiling.exact import known_rounding
from cohort.profiling.experiment import changed_output, influence, influenced
from cohort.profiling.kept import KeptProfile, read_kept
from cohort.profiling.measurement import (
    MEASURING,
    Profile,
    choose_size,
    measure_profile,
    pad_safely,
    sizes_up_to,
)
from cohort.profiling.result import ProfileResult, keep, key_for, profile_briefly, profile_model
from cohort.profiling.row_findings import OTHER_BITS, RowFindings, with_findings
from cohort.profiling.row_words import row_advice, row_places
from cohort.profiling.runs import OutOfTime, Runs
from cohort.profiling.sharing import is_along_axis_0, plan_rows, why_rows_are_fixed, why_unbatchable
from cohort.profiling.store import Store
from cohort.profiling.threads import Threads, small_enough
from cohort.profiling.trial import MAX_ROW_ELEMENTS, Trial, find_trial, synthetic_inputs
from cohort.profiling.varied import varied_array

__all__ = [
    "MAX_ROW_ELEMENTS",
    "MEASURING",
    "OTHER_BITS",
    "ConcurrentRuns",
    "KeptProfile",
    "OutOfTime",
    "Profile",
    "ProfileResult",
    "RowFindings",
    "Runs",
    "Store",
    "Threads",
    "Trial",
    "best_concurrency",
    "changed_output",
    "choose_size",
    "find_trial",
    "influence",
    "influenced",
    "is_along_axis_0",
    "keep",
    "key_for",
    "known_rounding",
    "measure_concurrency",
    "measure_profile",
    "pad_safely",
    "plan_rows",
    "profile_briefly",
    "profile_model",
    "read_kept",
    "row_advice",
    "row_places",
    "sizes_up_to",
    "small_enough",
    "synthetic_inputs",
    "varied_array",
    "why_rows_are_fixed",
    "why_unbatchable",
    "with_findings",
]
