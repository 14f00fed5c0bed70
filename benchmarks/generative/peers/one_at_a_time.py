"""The loop of every worker in Python: one line of JSON in, one line out.

In: `prompts` (lists of token ids), `tokens` (length of each answer), `late` (None, or the number of
the first caller's tokens when the last one joins). Out: `submitted`, a time of each caller;
`times`, the times of each caller's tokens; `cpu`, the CPU seconds of this process.
"""

import json
import os
import sys
from time import perf_counter, process_time


def work(answer, cpu=process_time, ready="ready"):
    """Call `answer(prompts, tokens, late)` for each line; it returns (submitted, times).

    cpu: Returns the CPU seconds so far.
    ready: Facts about the candidate, for the report.
    """
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries may print
    print(json.dumps(ready), file=out, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        before = cpu()
        submitted, times = answer(asked["prompts"], asked["tokens"], asked["late"])
        found = {"submitted": submitted, "times": times, "cpu": cpu() - before}
        print(json.dumps(found), file=out, flush=True)


now = perf_counter
