"""Find out at load what a model is like: whether its rows may share a run, and how long runs take.

Whether batching pays is a property of the model and the machine, so it is measured: time(n) for
n = 1, 2, 4, … rows, of which the smallest n within 10 % of the best rows per second is chosen. And
whether batching is *right* is a property of the model alone: in a dynamically quantized one an
outlier row changes its neighbours' answers. So rows of mixed scale are run together and alone, and
unless the answers agree, requests do not share runs.

`find_out` is the way in; what it found is kept under the cache folder.
"""

from app.profiling.finding import Finding, Kept, find_out, key_for
from app.profiling.measuring import (
    Profile,
    agree,
    choose_size,
    find_trial,
    made_up,
    pad_safely,
    profile,
    sizes_up_to,
    why_alone,
)
from app.profiling.store import Store
from app.profiling.threads import Threads, small_enough
from app.profiling.together import Together, best, run_together, together

__all__ = [
    "Finding",
    "Kept",
    "Profile",
    "Store",
    "Threads",
    "Together",
    "agree",
    "best",
    "choose_size",
    "find_out",
    "find_trial",
    "key_for",
    "made_up",
    "pad_safely",
    "profile",
    "run_together",
    "sizes_up_to",
    "small_enough",
    "together",
    "why_alone",
]
