"""onnxruntime-genai's own loop: Generators of at most 32 callers, one after the other."""

import sys

import numpy as np
import onnxruntime_genai as og
from genai_model import open_model
from one_at_a_time import now, work

model = open_model(sys.argv[1], int(sys.argv[2]))
MAX_BATCH = 32  # the library's maximum


def answer(prompts, tokens, late):
    submitted, times = [now()] * len(prompts), [[] for _ in prompts]
    together = len(prompts) if late is None else len(prompts) - 1

    def generate(callers):
        params = og.GeneratorParams(model)
        length = len(prompts[0]) + tokens
        params.set_search_options(
            max_length=length, min_length=length, batch_size=len(callers), do_sample=False
        )
        generator = og.Generator(model, params)
        generator.append_tokens(np.array([prompts[one] for one in callers], np.int32))
        for step in range(tokens):
            generator.generate_next_token()
            at = now()
            for one in callers:
                times[one].append(at)
            if late is not None and callers[0] == 0 and step + 1 == late:
                submitted[-1] = at

    for start in range(0, together, MAX_BATCH):
        generate(range(start, min(start + MAX_BATCH, together)))
    if together < len(prompts):
        generate([together])
    return submitted, times


work(answer)
