"""Cohort's engine in process: no HTTP, no server."""

import asyncio
import sys
from collections import Counter
from pathlib import Path

from one_at_a_time import now, work

from cohort.generation import GenerationRequest, Sampling
from cohort.generative.factory import GenerativeEngines
from cohort.onnx_engine import VersionOpener
from cohort.registry import Site, Source
from cohort.repository import GenerationPolicy, ModelConfig
from cohort.scheduling import Scheduler
from cohort.session import CancellationToken, Provider, SessionOptions

folder, threads, most = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
provider = sys.argv[4] if len(sys.argv) > 4 else "cpu"


class NoModels:
    """A language model looks for no others."""

    def find(self, name, version=None):
        raise LookupError(name)


class Reply:
    """Keeps the times of an answer's tokens."""

    def __init__(self, tokens, reached):
        self.times, self._tokens, self._reached = [], tokens, reached
        self.ended_at = asyncio.get_running_loop().create_future()

    def pieces(self, pieces):
        at = now()
        for piece in pieces:
            self.times += [at] * len(piece.tokens)
        self._reached(len(self.times))

    def ended(self, usage, error):
        self.ended_at.set_result(error)


async def answer(engine, prompts, tokens, late):
    submitted, replies, joined = [now()] * len(prompts), {}, asyncio.Event()

    def submit(caller, reached=lambda count: None):
        sampling = Sampling(temperature=0)
        request = GenerationRequest(tuple(prompts[caller]), tokens, sampling, ignore_end=True)
        replies[caller] = Reply(tokens, reached)
        submitted[caller] = now()
        engine.generate(engine.prepare(request), replies[caller])

    def reached(count):
        if late is not None and count >= late:
            joined.set()

    for caller in range(len(prompts) if late is None else len(prompts) - 1):
        submit(caller, reached if caller == 0 else lambda count: None)
    if late is not None:
        await joined.wait()
        submit(len(prompts) - 1)
    for caller in range(len(prompts)):
        error = await replies[caller].ended_at
        if error is not None:
            raise error
    return submitted, [replies[caller].times for caller in range(len(prompts))]


def main():
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)

    async def start():
        scheduler = Scheduler({"cpu": 2})
        factory = GenerativeEngines(wake=scheduler.wake, opener=VersionOpener(None))
        providers = [Provider(one) for one in dict.fromkeys((provider, "cpu"))]
        config = ModelConfig(
            providers=tuple(providers),
            session=SessionOptions(intra_op_threads=threads),
            generation=GenerationPolicy(max_sequences=most),
        )
        path = folder / "genai_config.json"
        opened = factory.open(Source(path, "", config, model="m"), CancellationToken())
        return opened.start(Site("m", 1, lambda event: None, NoModels()))

    engine = loop.run_until_complete(start())
    nodes = Counter(one.provider for one in engine.assigned_nodes())
    ready = "nodes by provider: " + ", ".join(f"{count} {one}" for one, count in nodes.items())
    work(lambda *asked: loop.run_until_complete(answer(engine, *asked)), ready=ready)


main()
