"""Find out at load what a model is like: whether its rows may share a run, and how long runs take.

Whether batching pays is a property of the model and the machine, so it is measured: time(n) for
n = 1, 2, 4, … rows, of which the smallest n within 10 % of the best rows per second is chosen. And
whether batching is *right* is a property of the model alone: in a dynamically quantized one an
outlier row changes its neighbours' answers. So rows of mixed scale are run together and alone, and
unless the answers agree, requests do not share runs.

`profile_model` is the way in; what it found is kept under the cache folder.
"""

from app.profiling.concurrency import Together, best, run_together, together
from app.profiling.measurement import (
    Profile,
    choose_size,
    find_trial,
    pad_safely,
    profile,
    sizes_up_to,
    synthetic,
    why_unbatchable,
)
from app.profiling.result import Kept, ProfileResult, key_for, profile_model
from app.profiling.store import Store
from app.profiling.threads import Threads, small_enough

__all__ = [
    "Kept",
    "Profile",
    "ProfileResult",
    "Store",
    "Threads",
    "Together",
    "best",
    "choose_size",
    "find_trial",
    "key_for",
    "pad_safely",
    "profile",
    "profile_model",
    "run_together",
    "sizes_up_to",
    "small_enough",
    "synthetic",
    "together",
    "why_unbatchable",
]
