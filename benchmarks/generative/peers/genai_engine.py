"""onnxruntime-genai's Engine, which callers join when it lets them."""

import sys

import numpy as np
import onnxruntime_genai as og
from genai_model import open_model
from one_at_a_time import now, work

model = open_model(sys.argv[1], int(sys.argv[2]))


def answer(prompts, tokens, late):
    engine = og.Engine(model)
    events = engine.create_event_buffer(256)
    submitted, times = [now()] * len(prompts), [[] for _ in prompts]
    requests = {}

    def submit(caller):
        options = og.RequestOptions()
        options.set_max_session_tokens(len(prompts[caller]) + tokens)
        request = engine.create_request(options=options)
        turn = og.TurnOptions(request)
        turn.set_do_sample(False)
        turn.set_max_generated_tokens(tokens)
        turn.set_min_generated_tokens(tokens)
        submitted[caller] = now()
        request.begin_turn(np.array(prompts[caller], np.int32), turn)
        requests[caller] = request

    for caller in range(len(prompts) if late is None else len(prompts) - 1):
        submit(caller)
    while engine.has_pending_requests():
        for event in engine.run(events):
            at = now()
            if int(event.flags) & int(og.EngineEventFlags.TOKEN):
                caller = next(one for one, known in requests.items() if known == event.request)
                if len(times[caller]) < tokens:
                    times[caller].append(at)
        if late is not None and len(prompts) - 1 not in requests and len(times[0]) >= late:
            submit(len(prompts) - 1)
    for request in requests.values():
        request.close()
    return submitted, times


work(answer)
