"""Quotas of tokens: what a request to a language model costs its caller."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cohort.auth import ApiKey, Caller
from cohort.auth.quota import MinuteQuota
from cohort.errors import Overloaded
from cohort.generation import GenerationRequest, Piece
from cohort.serving import RequestContext
from cohort.serving.token_charge import TokenCharge
from tests.aviary import open_aviary
from tests.parrot_callers import ask
from tests.waiting import until

WHOLE = 3 + 64
"""The tokens that a request of three words may take: the parrot's context has 64."""


def caller(tokens_per_minute: int) -> Caller:
    """A caller with a quota of tokens."""
    found = Caller("web")
    found.follow(ApiKey("web", sha256="0" * 64, tokens_per_minute=tokens_per_minute))
    return found


def test_tokens_of_a_minute_are_kept_and_come_back_evenly() -> None:
    """A refused request takes none, and learns when there are enough."""
    quota = MinuteQuota(60)
    assert quota.take(50, 100.0) == 0
    assert quota.take(20, 100.0) == pytest.approx(10.0)
    assert quota.take(20, 110.0) == 0
    quota.correct(-60, 110.0)
    assert quota.take(60, 111.0) == 0


def test_a_request_over_the_quota_passes_if_it_is_full() -> None:
    """Otherwise it could never pass; its caller then waits for the whole of it."""
    quota = MinuteQuota(60)
    assert quota.take(120, 0.0) == 0
    assert quota.take(1, 0.0) == pytest.approx(61.0)
    assert quota.take(120, 60.0) > 0


async def test_unused_tokens_come_back_at_the_end(tmp_path: Path) -> None:
    """A request is charged for all it may take, and refused if that is too much."""
    web = caller(WHOLE + 20)
    async with open_aviary(tmp_path) as aviary:
        aviary.parrot.pauses_after = 1
        _, first = ask(aviary, "one two three", caller=web)
        await until(lambda: len(first.parts) > 1)
        _, second = ask(aviary, "one two three", caller=web)
        await second.over.wait()
        aviary.parrot.pauses_after = None
        aviary.parrot.said[0].resume()
        await first.over.wait()
        _, third = ask(aviary, "one two three", caller=web)
        await third.over.wait()
    assert first.error is third.error is None
    assert isinstance(second.error, Overloaded)
    assert second.error.retry_after > 1
    assert "tokens per minute" in str(second.error)
    assert web.refused["tokens"] == 1


async def test_an_answer_may_use_all_that_was_charged(tmp_path: Path) -> None:
    """Its end needs no further tokens, also if the quota is exhausted."""
    web = caller(5)
    async with open_aviary(tmp_path) as aviary:
        engine = aviary.plane.pick("m").text
        prepared = engine.prepare(GenerationRequest("one two three", 4))
        charge = TokenCharge(web, [prepared])
        charge.pieces([Piece(0, "one two three one", (1, 2, 3, 1))])
        charge.settle()
    with pytest.raises(Overloaded):
        web.charge_tokens(1)


async def test_a_caller_that_leaves_pays_for_what_it_got(tmp_path: Path) -> None:
    """The prompt, and the tokens so far."""
    web = caller(2 * WHOLE)
    async with open_aviary(tmp_path) as aviary:
        _, heard = ask(aviary, "one two three", leave_after=3, caller=web)
        await heard.over.wait()
    web.charge_tokens(2 * WHOLE - 3 - 2)  # the rest
    with pytest.raises(Overloaded):
        web.charge_tokens(1)


async def test_requests_of_tensors_are_charged_before_they_are_queued(tmp_path: Path) -> None:
    """The quota refuses a second request while the first may still use it."""
    web = caller(WHOLE)
    text = {"text_input": np.array(["one two three"], object)}
    async with open_aviary(tmp_path) as aviary:
        aviary.parrot.pauses_after = 1
        context = RequestContext(caller=web)
        with (
            aviary.plane.pick("m", context=context) as first,
            aviary.plane.pick("m", context=context) as second,
        ):
            first.submit(text, lambda outputs, error: None)
            with pytest.raises(Overloaded, match=f"may take {WHOLE}"):
                second.submit(text, lambda outputs, error: None)
