"""Answers of language models as evidence for rollouts: what callers got."""

from __future__ import annotations

from time import monotonic

import pytest

from cohort.errors import Cancelled, InferenceFailed
from cohort.generation import GenerationRequest, Sampling, Usage
from cohort.metrics import VersionMetrics
from cohort.registry import Catalog
from cohort.rollouts import Compared, LiveRollout, parse_rollouts
from cohort.serving.observed_answer import ObservedAnswer
from cohort.serving.served import ServedVersion
from tests.engines import make_catalog, make_entry
from tests.parrot import Heard, Parrot, Saying
from tests.rollouts.engines import Events
from tests.waiting import iterations, until

GREEDY = Sampling(temperature=0)
SHADOW = "m: {variants: {stable: {version: 1, weight: 1}}, shadow: {version: 2}}"
CANARY = """
m:
  variants: {stable: {version: 1, weight: 1}, canary: {version: 2, weight: 1}}
  guard: {max_error_rate_increase: 0.01}
"""


class Terse(Parrot):
    """Repeats the first word only."""

    def prepare(self, request: GenerationRequest) -> Heard:
        prepared = super().prepare(request)
        return Heard(request, prepared.text, prepared.prompt, 1)


class Rig:
    """A rollout over parrots, and a caller of one of them.

    saying: The answer to the caller.
    """

    def __init__(self, config: str, two: Parrot) -> None:
        self.parrots = {1: Parrot(), 2: two}
        self.events = Events()
        rollout = parse_rollouts(config, "rollouts.yaml")["m"]
        self.live = LiveRollout(rollout, self.catalog, self.events.observe)
        self.saying: Saying

    def catalog(self) -> Catalog:
        entries = [make_entry(number, one) for number, one in self.parrots.items()]
        return make_catalog({"m": entries})

    async def ask(self, request: GenerationRequest, *, version: int = 1, after: int = 0) -> None:
        """Get an answer; leave, or `fail` it, after this number of words unless it is 0."""
        parrot = self.parrots[version]
        variant = "stable" if version == 1 else "canary"
        observed = self.live.observe(variant, version)
        served = ServedVersion("m", str(version), parrot, VersionMetrics())
        prepared = parrot.prepare(request)
        began = monotonic()

        class Caller:
            def pieces(self, pieces: object) -> None:
                """Read them."""

            def ended(self, usage: Usage, error: Exception | None) -> None:
                observed.close(error, now=monotonic(), seconds=monotonic() - began)

        reply = ObservedAnswer(prepared, Caller(), observed, served, tight_deadline=False)
        parrot.pauses_after = after or None
        self.saying = parrot.generate(prepared, reply)
        self.observed = observed
        parrot.pauses_after = None
        await iterations(8)

    def bad(self) -> float:
        """The failures that count against the canary."""
        self.live.judge()
        return self.live.evidence.candidates["canary"].errors.variant.bad


@pytest.mark.parametrize(("two", "apart"), [(Parrot(), 0.0), (Terse(), 10.0)])
async def test_greedy_answers_agree_if_their_texts_are_equal(two: Parrot, apart: float) -> None:
    """Otherwise the difference is that of their lengths; each choice is a text."""
    rig = Rig(SHADOW, two)
    await rig.ask(GenerationRequest("one two three", sampling=GREEDY, choices=2))
    (compared,) = await rig.events.wait_for(Compared, 1)
    assert compared.disagrees is (apart > 0)
    (output,) = compared.outputs
    assert output.largest == apart
    assert two.said[0].request.choices == 2


async def test_sampled_answers_have_no_shadow() -> None:
    """They may differ in every run."""
    rig = Rig(SHADOW, Parrot())
    await rig.ask(GenerationRequest("one two three"))
    assert rig.parrots[2].said == []


async def test_a_cut_stream_is_a_failure() -> None:
    """Its caller got the beginning, but the baseline gives the whole answer."""
    rig = Rig(CANARY, Parrot())
    await rig.ask(GenerationRequest("one two three"), version=2, after=1)
    rig.saying.fail(InferenceFailed("no"))
    await until(lambda: len(rig.parrots[1].said) == 1)
    await iterations(8)
    assert rig.bad() == 1


async def test_a_caller_that_leaves_its_stream_is_no_evidence() -> None:
    """It may have read enough."""
    rig = Rig(CANARY, Parrot())
    await rig.ask(GenerationRequest("one two three"), version=2, after=1)
    rig.observed.close(Cancelled("left"), now=monotonic(), seconds=1e6)
    await iterations(8)
    assert rig.bad() == 0
    assert rig.parrots[1].said == []
