"""openvino-genai's continuous batching, on the GGUF file."""

import sys
from itertools import count

import numpy as np
import openvino as ov
import openvino_genai as og
from one_at_a_time import now, work

path, threads = sys.argv[1], int(sys.argv[2])
scheduler = og.SchedulerConfig()
scheduler.cache_size = 1
scheduler.max_num_seqs = 64
scheduler.dynamic_split_fuse = True
pipeline = og.ContinuousBatchingPipeline(
    path, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
)
numbers = count()


def answer(prompts, tokens, late):
    submitted, times = [now()] * len(prompts), [[] for _ in prompts]
    config = og.GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.do_sample = tokens, True, False
    handles = {}

    def submit(caller):
        submitted[caller] = now()
        ids = ov.Tensor(np.array([prompts[caller]], np.int64))
        handles[caller] = pipeline.add_request(next(numbers), ids, config)

    for caller in range(len(prompts) if late is None else len(prompts) - 1):
        submit(caller)
    while pipeline.has_non_finished_requests():
        pipeline.step()
        at = now()
        for caller, handle in list(handles.items()):
            if handle.can_read():
                for one in handle.read().values():
                    times[caller] += [at] * len(one.generated_ids)
        if late is not None and len(prompts) - 1 not in handles and len(times[0]) >= late:
            submit(len(prompts) - 1)
    return submitted, times


work(answer)
