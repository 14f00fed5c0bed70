"""An engine of a language model: its answers never depend on what else runs."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from threading import Event
from typing import Any, Self
from unittest import mock

import numpy as np
import pytest

from cohort.errors import (
    CohortError,
    DeadlineExceeded,
    InferenceFailed,
    InvalidInput,
    LoadFailed,
    NotReady,
    Overloaded,
)
from cohort.generation import (
    Conversation,
    GenerationRequest,
    Piece,
    PreparedGeneration,
    Sampling,
)
from cohort.generative import factory, planning, steps
from cohort.generative.config import describe_export
from cohort.generative.decoder import SharedDecoder
from cohort.generative.events import Admitted, Ended, FirstToken, Preempted, Stepped
from cohort.generative.factory import GenerativeEngines, is_plain_decoder
from cohort.generative.pace import Pace
from cohort.generative.planning import PromptBudget
from cohort.onnx_engine import VersionOpener
from cohort.registry import RequestNotes, Source
from cohort.repository import GenerationPolicy, ModelConfig
from cohort.session import CancellationToken
from cohort.tensors import TensorSpec
from models.decoder import letter_tokenizer, write_decoder
from models.decoder_graph import DecoderShape
from tests.generative.serving import Answer, Served, serving
from tests.plain_decoder import write_plain_decoder
from tests.waiting import PATIENCE, iterations

GREEDY = Sampling(temperature=0.0)
SMALL = GenerationPolicy(prefill_tokens=32, max_sequences=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny language model."""
    return write_decoder(tmp_path_factory.mktemp("decoder") / "1").parent


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(int(one) for one in np.random.default_rng(seed).integers(4, 320, length))


def greedy(tokens: tuple[int, ...], most: int = 12, **wanted: Any) -> GenerationRequest:
    return GenerationRequest(tokens, most, GREEDY, logprobs=0, ignore_end=True, **wanted)


def random_request(chance: Random) -> GenerationRequest:
    """A greedy request, or a seeded one with a mix of options."""
    request = greedy(prompt(chance.randint(1, 90), chance.randint(0, 5)), chance.randint(1, 30))
    if chance.random() < 0.6:
        return request
    mixed = Sampling(
        temperature=chance.choice([0.7, 1.3]),
        top_k=chance.choice([0, 20]),
        top_p=chance.choice([1.0, 0.9]),
        repetition_penalty=chance.choice([1.0, 1.2]),
        seed=chance.randint(0, 5),
    )
    return replace(request, sampling=mixed)


async def test_answers_equal_those_of_a_lone_caller(folder: Path) -> None:
    """200 requests join, leave and are cancelled at random; tokens and logprobs are those alone.

    A cancelled answer is the beginning of the lone one. Afterwards no place is taken.
    """
    chance = Random(1)
    requests = [random_request(chance) for _ in range(200)]
    policy = replace(SMALL, cache_mb=0.13, max_waiting=1000)  # short, so that some are pre-empted
    async with serving(folder, policy) as served:
        answers, cancelled = [], []
        for number, request in enumerate(requests):
            ticket, answer = served.ask(request, caller=chance.choice("abc"))
            answers.append(answer)
            if chance.random() < 0.2:
                await answer.first.wait()
                ticket.cancel()
                cancelled.append(number)
            elif chance.random() < 0.3:
                await asyncio.wait([one.done for one in answers], return_when="FIRST_COMPLETED")
                await answer.first.wait()
        for number, answer in enumerate(answers):
            if number not in cancelled:
                usage, error = await answer.done
                assert error is None
                assert usage.answer == requests[number].max_tokens
        await idle(served)
        assert any(isinstance(one, Preempted) for one in served.events)
        assert any(isinstance(one, Admitted) and one.cached for one in served.events)
    async with serving(folder, GenerationPolicy(prefill_tokens=32, max_sequences=1)) as alone:
        for number, request in enumerate(requests):
            solo = await alone.solo(request)
            count = len(answers[number].tokens[0])
            assert answers[number].tokens[0] == solo.tokens[0][:count], number
            assert answers[number].logprobs == solo.logprobs[:count], number
            assert number in cancelled or count == len(solo.tokens[0])


async def idle(served: Served) -> None:
    """Wait until nothing runs, and check that no place in the cache is taken."""
    queue = served.engine._queue
    while queue.running or queue._running or queue.waiting:
        await iterations(1)
    assert queue.state.cache_used == 0
    assert queue.state.running == queue.state.waiting == 0


@pytest.mark.parametrize("fails", ["pieces", "ended"])
async def test_a_reply_that_fails_affects_no_other(folder: Path, fails: str) -> None:
    """The other answers of the same steps are whole."""
    requests = [greedy(prompt(9, one)) for one in range(3)]
    async with serving(folder, SMALL) as served:
        solo = [await served.solo(request) for request in requests]
    async with serving(folder, SMALL) as served:
        answers = []
        for number, request in enumerate(requests):
            answer = Answer()
            if number == 1:
                setattr(answer, fails, mock.Mock(side_effect=ValueError("a bug")))
            served.engine.generate(served.engine.prepare(request), answer)
            answers.append(answer)
        for number in (0, 2):
            await answers[number].done
            assert answers[number].tokens == solo[number].tokens
        await idle(served)


async def test_a_kept_prompt_changes_nothing(folder: Path) -> None:
    """A prompt that begins like an earlier one is not computed again; its answer is the same."""
    system, end = prompt(50, 1), prompt(9, 2)
    async with serving(folder, SMALL) as served:
        fresh = await served.solo(greedy(system + end))
    async with serving(folder, SMALL) as served:
        await served.solo(greedy(system + prompt(5, 3)))
        _, answer = served.ask(greedy(system + end))
        usage, _ = await answer.done
    assert usage.cached == 32  # a block
    assert answer.tokens == fresh.tokens
    assert answer.logprobs == fresh.logprobs


async def test_choices_share_their_prompt(folder: Path) -> None:
    """The prompt is computed once; choices with a seed differ, and are the same each time."""
    request = replace(greedy(prompt(40)), choices=4, sampling=Sampling(seed=7))
    async with serving(folder, SMALL) as served:
        first = await served.solo(request)
        computed = sum(one.prompt for one in served.events if isinstance(one, Stepped))
        again = await served.solo(request)
        likely = await served.solo(replace(request, sampling=GREEDY))
    assert computed == 40
    assert len({tuple(tokens) for tokens in first.tokens.values()}) > 1
    assert again.tokens == first.tokens
    assert len({tuple(tokens) for tokens in likely.tokens.values()}) == 1


async def in_steps(answer: Answer) -> None:
    """Wait until a run gives an answer several tokens."""
    while len(answer.tokens.get(0, ())) < 5:
        await iterations(1)


async def test_a_late_joiner_has_a_token_within_two_steps(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that arrives while others run joins at the next step."""
    monkeypatch.setattr(steps, "RUN_SECONDS", 60.0)
    async with serving(folder, SMALL) as served:
        others = [served.ask(greedy(prompt(10, seed), 150))[1] for seed in range(3)]
        await in_steps(others[0])
        before = len(served.events)
        _, late = served.ask(greedy(prompt(10, 9), 2))
        await late.first.wait()
        new = served.events[before:]
        place = next(i for i, one in enumerate(new) if isinstance(one, FirstToken))
        assert sum(isinstance(one, Stepped) for one in new[:place]) <= 2
        assert not any(other.done.done() for other in others)


async def test_a_run_is_few_steps_ahead_of_its_deliveries(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the event loop is busy, the run ends, so that new callers do not wait for it."""
    monkeypatch.setattr(steps, "RUN_SECONDS", 60.0)
    monkeypatch.setattr(planning, "GROWTH", 240)
    ended, execute = Event(), steps.GenerationRun.execute

    def note(run: steps.GenerationRun) -> None:
        execute(run)
        ended.set()

    monkeypatch.setattr(steps.GenerationRun, "execute", note)
    async with serving(folder, SMALL) as served:
        _, answer = served.ask(greedy(prompt(5), 200))
        queue = served.engine._queue
        for _ in range(8):
            ended.clear()
            await iterations(1)
            assert not queue.running or ended.wait(PATIENCE)  # the loop is busy
            assert all(len(run.results) <= steps.AHEAD + 1 for run in queue.running)
        assert answer.tokens[0]
        assert not answer.done.done()
        await answer.done


async def test_the_pace_of_prompts_is_measured(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts have as many tokens in a step as their pace allows, which learns from each step."""
    learned: list[tuple[int, float, float]] = []
    monkeypatch.setattr(Pace, "beside_answers", lambda self: PromptBudget(16, 16))
    monkeypatch.setattr(Pace, "learn", lambda self, *step: learned.append(step))
    async with serving(folder, SMALL) as served:
        _, other = served.ask(greedy(prompt(5), 100))
        await other.first.wait()
        await served.solo(greedy(prompt(66, 1), 2))
    assert learned[0][0] == 5
    assert learned[0][2] == 0.0
    parts = [(tokens, seconds, step) for tokens, seconds, step in learned[1:] if tokens]
    assert [tokens for tokens, _, _ in parts] == [16, 16, 16, 16, 2]
    assert all(seconds > 0 and step > 0 for _, seconds, step in parts)


async def test_runs_have_the_options_that_the_runtime_looks_for(folder: Path) -> None:
    """The runtime asks for a graph's id in each run; without one it raises, which takes long."""
    async with serving(folder, SMALL) as served:
        decoder = served.engine._queue._decoder
        assert isinstance(decoder, SharedDecoder)
        assert decoder._control.options.get_run_config_entry("gpu_graph_id") == "-1"


async def test_threads_spin_between_the_nodes_of_a_step(folder: Path) -> None:
    """Waking them up for each node takes longer than most nodes."""
    async with serving(folder, SMALL) as served:
        decoder = served.engine._queue._decoder
        assert isinstance(decoder, SharedDecoder)
        options = decoder._session.raw.get_session_options()
        assert options.get_session_config_entry("session.intra_op.allow_spinning") == "1"


async def test_a_long_prompt_delays_others_by_one_part_in_each_step(folder: Path) -> None:
    """While a prompt is computed in parts, each step also gives the others their next token."""
    budget = PromptBudget(32, 32)
    async with serving(folder, SMALL) as served:
        # At the measured pace, the other might end first on a busy machine.
        with mock.patch.object(Pace, "beside_answers", return_value=budget):
            _, other = served.ask(greedy(prompt(5), 100))
            await other.first.wait()
            _, long = served.ask(greedy(prompt(200, 1), 2))
            await long.first.wait()
        parts = [one for one in served.events if isinstance(one, Stepped) and one.prompt][1:]
    assert sum(one.prompt for one in parts) == 200
    assert all(one.prompt <= 33 and one.answer >= 1 for one in parts)


async def test_short_prompts_pass_many_long_ones_of_another_caller(folder: Path) -> None:
    """A caller with 40 long prompts does not keep another's short ones waiting."""
    policy = GenerationPolicy(prefill_tokens=16, max_sequences=4)
    async with serving(folder, policy) as served:
        long = [served.ask(greedy(prompt(200, n), 20), caller="greedy")[1] for n in range(40)]
        await long[0].first.wait()
        for seed in range(5):
            _, short = served.ask(greedy(prompt(6, seed), 5), caller="chat")
            await short.done
        assert sum(one.done.done() for one in long) < 5


@pytest.mark.parametrize("keyed", [False, True])
async def test_a_long_prompt_is_computed_next_to_a_flood_of_short_ones(
    folder: Path, keyed: bool
) -> None:
    """Short prompts come faster than they are computed, of one caller or of ever new ones."""
    async with serving(folder, GenerationPolicy(prefill_tokens=32, max_sequences=9)) as served:
        _, other = served.ask(greedy(prompt(5), 250))
        await other.first.wait()
        _, long = served.ask(greedy(prompt(200), 2), caller="long" if keyed else "")

        async def flood(number: int) -> None:
            for each in range(40):
                if not long.first.is_set():
                    caller = f"{number}, {each}" if keyed else ""
                    _, short = served.ask(greedy(prompt(16, each), 2), caller=caller)
                    await short.done

        await asyncio.gather(*map(flood, range(20)))
        assert long.first.is_set()


async def test_a_short_prompt_passes_the_long_one_in_progress(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new caller's is computed next, and the same caller's after one more part."""
    monkeypatch.setattr(Pace, "beside_answers", lambda self: PromptBudget(8, 8))
    for caller, parts in (("new", 1), ("long", 2)):
        async with serving(folder, SMALL) as served:
            _, other = served.ask(greedy(prompt(5), 250))
            await other.first.wait()
            _, long = served.ask(greedy(prompt(200, 1), 2), caller="long")
            while sum(isinstance(one, Stepped) and one.prompt > 0 for one in served.events) < 4:
                await iterations(1)
            before = len(served.events)
            _, short = served.ask(greedy(prompt(8, 2), 2), caller=caller)
            await short.first.wait()
            assert not long.first.is_set()
            computed = [one for one in served.events[before:] if isinstance(one, Stepped)]
            assert sum(one.prompt > 0 for one in computed) <= parts + 2  # its own, and the current


async def test_every_second_entry_of_a_caller_is_its_shortest_prompts(folder: Path) -> None:
    """With one place, the youngest and shortest of those that wait is the second to enter."""
    async with serving(folder, GenerationPolicy(prefill_tokens=32, max_sequences=1)) as served:
        first, *_, last = [served.ask(greedy(prompt(90, n), 9))[1] for n in range(3)] + [
            served.ask(greedy(prompt(6), 2))[1]
        ]
        await last.done
        entered = [one.prompt for one in served.events if isinstance(one, Admitted)]
        assert entered[:2] == [90, 6]
        assert first.done.done()


async def test_the_rest_of_a_prompt_is_never_a_single_token(folder: Path) -> None:
    """Parts end at multiples of eight tokens; a run of one token would give other bits."""
    async with serving(folder, GenerationPolicy(prefill_tokens=128)) as served:
        bodies = [served.engine.prepare(greedy(prompt(n))).body for n in (1, 8, 9, 10, 17, 18)]
        assert bodies == [0, 0, 0, 8, 8, 16]


async def test_a_caller_who_leaves_frees_the_place_within_one_token(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a cancellation, no further step computes the answer."""
    monkeypatch.setattr(steps, "RUN_SECONDS", 60.0)
    async with serving(folder, SMALL) as served:
        ticket, answer = served.ask(greedy(prompt(5), 200))
        await in_steps(answer)
        ticket.cancel()
        count = sum(isinstance(one, Stepped) for one in served.events)
        await idle(served)
        assert sum(isinstance(one, Stepped) for one in served.events) <= count + 1
        assert not answer.done.done()
        assert [one.code for one in served.events if isinstance(one, Ended)] == ["Cancelled"]


async def test_a_deadline_ends_an_answer(folder: Path) -> None:
    """An answer that takes too long ends with DeadlineExceeded, and a late request is refused."""
    async with serving(folder, SMALL) as served:
        _, answer = served.ask(greedy(prompt(5), 250), timeout=0.01, deadline=_now() + 0.01)
        usage, error = await answer.done
        assert isinstance(error, DeadlineExceeded)
        assert usage.answer < 250
        await idle(served)
        with pytest.raises(DeadlineExceeded):
            served.ask(greedy(prompt(5)), deadline=_now() - 1)


def _now() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize(
    ("request_", "parameter"),
    [
        (greedy(()), "prompt"),
        (greedy(prompt(256)), "prompt"),
        (greedy(prompt(200), 57), "max_tokens"),
        (greedy(prompt(5), 0), "max_tokens"),
        (greedy((320,)), "prompt"),
        (greedy((-1,)), "prompt"),
        (greedy(prompt(5), choices=10_000), "n"),
        (replace(greedy(prompt(5)), sampling=Sampling(temperature=-1.0)), "temperature"),
        (GenerationRequest(Conversation([{"role": "user", "content": "1 " * 1000}])), "messages"),
    ],
)
async def test_requests_that_can_never_fit_are_refused(
    folder: Path, request_: GenerationRequest, parameter: str
) -> None:
    """They are refused before they are queued, with the name of the wrong field."""
    async with serving(folder, SMALL) as served:
        with pytest.raises(InvalidInput) as caught:
            served.engine.prepare(request_)
        assert caught.value.parameter == parameter


async def test_the_cache_bounds_a_request(folder: Path) -> None:
    """A request that the whole cache does not hold is refused, and one that it holds is served."""
    async with serving(folder, replace(SMALL, cache_mb=0.02)) as served:
        most = served.engine.context_length
        assert most < 256
        with pytest.raises(InvalidInput, match="the server's cache"):
            served.engine.prepare(greedy(prompt(10), most))
        answer = await served.solo(greedy(prompt(10), most - 10))
        assert len(answer.tokens[0]) == most - 10


async def test_answers_may_take_minutes(folder: Path) -> None:
    """Without `timeout_ms`, an answer is not cut after the 30 seconds of other models."""
    async with serving(folder, SMALL) as served:
        assert served.engine.timeout == 600


@pytest.mark.parametrize("tokens", [2, 8])
async def test_a_short_context_is_enough(tokens: int, tmp_path: Path) -> None:
    """The whole of it is used, by a prompt and an answer."""
    write_decoder(tmp_path, DecoderShape(context=tokens))
    async with serving(tmp_path, SMALL) as served:
        answer = await served.solo(GenerationRequest((5,), None, GREEDY, ignore_end=True))
        assert len(answer.tokens[0]) == tokens - 1


async def test_a_full_queue_refuses_requests(folder: Path) -> None:
    """Requests beyond `max_waiting` are refused with Overloaded."""
    async with serving(folder, replace(SMALL, max_waiting=3)) as served:
        answers = [served.ask(greedy(prompt(5)))[1] for _ in range(3)]
        with pytest.raises(Overloaded):
            served.ask(greedy(prompt(5)))
        with pytest.raises(Overloaded):
            served.engine.check_room(0)
        for answer in answers:
            await answer.done


async def test_closing_fails_all_requests(folder: Path) -> None:
    """Requests that run or wait end with NotReady, and new ones are refused."""
    async with serving(folder, replace(SMALL, max_sequences=1)) as served:
        answers = [served.ask(greedy(prompt(5), 200))[1] for _ in range(3)]
        await answers[0].first.wait()
        served.engine.close()
        for answer in answers:
            _, error = await answer.done
            assert isinstance(error, NotReady)
        with pytest.raises(NotReady):
            served.ask(greedy(prompt(5)))


async def test_a_failing_run_ends_only_its_own_requests(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt whose run fails ends with InferenceFailed; another caller's answer continues."""
    bad = prompt(7, 5)
    whole = SharedDecoder.prefill

    def prefill(self: SharedDecoder, slot: int, tokens: Sequence[int], start: int) -> Any:
        if tuple(tokens) == bad:
            raise InferenceFailed("the run failed")
        return whole(self, slot, tokens, start)

    monkeypatch.setattr(SharedDecoder, "prefill", prefill)
    async with serving(folder, SMALL) as served:
        _, good = served.ask(greedy(prompt(5), 60))
        _, failing = served.ask(greedy(bad))
        _, error = await failing.done
        assert isinstance(error, InferenceFailed)
        _, none = await good.done
        assert none is None
        await idle(served)


async def test_a_run_that_fails_does_not_count_as_a_success_of_its_device(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that failed for good is reported until a run succeeds."""
    successes, execute = [], steps.GenerationRun.execute

    def note(run: steps.GenerationRun) -> None:
        execute(run)
        successes.append(run.first_success)

    async with serving(folder, SMALL) as served:
        monkeypatch.setattr(steps.GenerationRun, "execute", note)
        failure = mock.Mock(side_effect=InferenceFailed("the run failed"))
        monkeypatch.setattr(SharedDecoder, "prefill", failure)
        _, failing = served.ask(greedy(prompt(5)))
        await failing.done
    assert set(successes) == {None}


@pytest.mark.parametrize("kind", ["int4", "plain"])
async def test_other_kinds_of_decoders_answer_as_alone(tmp_path: Path, kind: str) -> None:
    """INT4 weights, and exports without fused attention: many answers at a time equal lone ones."""
    folder, file = tmp_path / "1", "genai_config.json"
    if kind == "plain":
        file = write_plain_decoder(folder).name
    else:
        write_decoder(folder, DecoderShape(width=64), quantize=True)
    requests = [greedy(prompt(5 + 7 * seed, seed)) for seed in range(6)]
    async with serving(folder, SMALL, file=file) as served:
        answers = [served.ask(request)[1] for request in requests]
        for answer in answers:
            await answer.done
    async with serving(folder, replace(SMALL, max_sequences=1), file=file) as alone:
        for request, answer in zip(requests, answers, strict=True):
            assert (await alone.solo(request)).tokens == answer.tokens


async def test_a_plain_export_equals_the_fused_one(folder: Path, tmp_path: Path) -> None:
    """Both graphs have the same weights, so they give the same tokens."""
    path = write_plain_decoder(tmp_path / "1")
    assert is_plain_decoder(path)
    async with serving(folder, SMALL) as served:
        fused = await served.solo(greedy(prompt(40)))
    async with serving(path.parent, SMALL, file=path.name) as served:
        assert (await served.solo(greedy(prompt(40)))).tokens == fused.tokens


def test_an_export_without_the_sizes_of_its_cache_names_the_files(tmp_path: Path) -> None:
    """A decoder of GenAI's builder needs its description, or that of Hugging Face."""
    past = TensorSpec("past_key_values.0.key", "FP32", ("batch", 2, "length", "size"))
    with pytest.raises(LoadFailed, match=r"needs the model's genai_config.json or config.json"):
        describe_export(tmp_path, "model.onnx", [past])


def _answered(done: asyncio.Future[Any], outputs: Any, error: CohortError | None) -> None:
    done.set_result((outputs, error))


async def test_requests_of_tensors_get_whole_texts(folder: Path) -> None:
    """Each prompt of `text_input` has its answer in `text_output`; parameters choose sampling."""
    async with serving(folder, SMALL) as served:
        wanted = await served.solo(GenerationRequest("12 34", 5, GREEDY))
        for text in ("12 34", "1 " * 3000):
            done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            served.engine.submit_with(
                RequestNotes({"max_tokens": 5}),
                {"text_input": np.array(["12 34", text], object)},
                partial(_answered, done),
            )
            outputs, error = await done
            if text == "12 34":
                assert outputs[0].tolist() == [wanted.text[0]] * 2
            else:
                assert isinstance(error, InvalidInput)  # longer than the context
        with pytest.raises(InvalidInput, match="max_tokens"):
            served.engine.submit_with(
                RequestNotes({"max_tokens": "many"}),
                {"text_input": np.array(["12 34"], object)},
                lambda outputs, error: None,
            )


class Meter:
    """Counts the tokens of a request. Implements `TokenUse`."""

    used = settled = 0
    first: asyncio.Event

    def charge(self, prompts: Sequence[PreparedGeneration]) -> Self:
        self.first = asyncio.Event()
        self.charged = sum(len(one.prompt) + one.max_tokens for one in prompts)
        return self

    def pieces(self, pieces: Sequence[Piece]) -> None:
        self.used += sum(len(piece.tokens) for piece in pieces)
        self.first.set()

    def settle(self) -> None:
        self.settled += 1


@pytest.mark.parametrize("leaves", [False, True])
async def test_requests_of_tensors_are_charged_for_their_tokens(folder: Path, leaves: bool) -> None:
    """They pay for all they may take, and get unused tokens back at the end or on leaving."""
    async with serving(folder, SMALL) as served:
        wanted = await served.solo(GenerationRequest("12 34", 50, GREEDY, ignore_end=True))
        meter = Meter()
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        ticket = served.engine.submit_with(
            RequestNotes({"max_tokens": 50, "ignore_eos": True}, charge=meter.charge),
            {"text_input": np.array(["12 34"] * 2, object)},
            partial(_answered, done),
        )
        usage, _ = wanted.done.result()
        assert (meter.charged, meter.settled) == (2 * (usage.prompt + 50), 0)
        if leaves:
            await meter.first.wait()
            ticket.cancel()
            assert meter.settled
            assert 0 < meter.used < 100
        else:
            await done
            assert meter.settled
            assert meter.used == 100


async def test_events_have_the_variant_of_their_request(folder: Path) -> None:
    """Requests of texts and of tensors, so that metrics are by variant."""
    async with serving(folder, SMALL) as served:
        _, answer = served.ask(greedy(prompt(5), 3), variant="canary")
        await answer.done
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        served.engine.submit_with(
            RequestNotes({"max_tokens": 3, "ignore_eos": True}, variant="stable"),
            {"text_input": np.array(["12 34"], object)},
            partial(_answered, done),
        )
        await done
        steps = [one for one in served.events if isinstance(one, Stepped)]
        variants = [variant for one in steps for variant in one.variants]
        assert variants == ["canary"] * 3 + ["stable"] * 3
        ended = [one.variant for one in served.events if isinstance(one, Ended)]
        assert ended == ["canary", "stable"]


def test_without_the_extra_a_version_does_not_load(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason names what to install, and what is missing."""
    monkeypatch.setattr(factory, "find_spec", lambda name: None if name == "llguidance" else name)
    engines = GenerativeEngines(wake=lambda queue: None, opener=VersionOpener(None))
    source = Source(folder / "genai_config.json", "", ModelConfig(), model="m")
    with pytest.raises(LoadFailed, match=r"\(llguidance\).*cohort\[generative\]"):
        engines.open(source, CancellationToken())


def test_keys_for_other_models_are_refused(folder: Path) -> None:
    """A config that would change tensors of a language model does not load, with the key's name."""
    engines = GenerativeEngines(wake=lambda queue: None, opener=VersionOpener(None))
    config = ModelConfig(state={"h": "h"})
    source = Source(folder / "genai_config.json", "", config, model="m")
    with pytest.raises(LoadFailed, match=r"m/config.yaml: state: "):
        engines.open(source, CancellationToken())


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("context_length", "long", "model.context_length: must be a whole number from 2"),
        ("eos_token_id", [-1], "model.eos_token_id: must be a token's id"),
        ("decoder", {"filename": "../model.onnx"}, "model.decoder.filename: must be a file next"),
        ("decoder", {"num_hidden_layers": 10**9}, "num_hidden_layers: must be a whole number"),
        ("decoder", {"num_hidden_layers": 3}, "no input 'past_key_values.2.key'"),
        ("context_length", 512, "a token at place 512 failed: "),
        ("vision", {}, "model.vision: models with this part are not supported"),
    ],
)
def test_a_wrong_description_is_refused(
    tmp_path: Path, key: str, value: Any, sentence: str
) -> None:
    """A wrong genai_config.json fails to load, with the key and the problem."""
    path = write_decoder(tmp_path / "1").parent / "genai_config.json"
    content = json.loads(path.read_text())
    before = content["model"].get(key)
    content["model"][key] = {**before, **value} if isinstance(before, dict) else value
    path.write_text(json.dumps(content))
    engines = GenerativeEngines(wake=lambda queue: None, opener=VersionOpener(None))
    with pytest.raises(LoadFailed, match=re.escape(sentence)):
        engines.open(Source(path, "", ModelConfig(), model="m"), CancellationToken())


def test_the_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    """It has more tokens than the decoder has logits."""
    path = write_decoder(tmp_path / "1", tokenizer=letter_tokenizer(400))
    engines = GenerativeEngines(wake=lambda queue: None, opener=VersionOpener(None))
    source = Source(path.parent / "genai_config.json", "", ModelConfig(), model="m")
    with pytest.raises(LoadFailed, match=r"tokenizer.json has 400 tokens, .* logits for 320"):
        engines.open(source, CancellationToken())


async def test_an_added_token_beyond_the_logits_is_refused_in_prompts(tmp_path: Path) -> None:
    """The model serves all other prompts, and the error has the token's text."""
    tokenizer = letter_tokenizer(320)
    tokenizer.add_special_tokens(["<|image|>"])
    path = write_decoder(tmp_path / "1", tokenizer=tokenizer)
    async with serving(path.parent) as served:
        await served.solo(GenerationRequest("hello", 2))
        sentence = r"token 320 \('<\|image\|>'\); .* 0 to 319"
        with pytest.raises(InvalidInput, match=sentence) as caught:
            served.engine.prepare(GenerationRequest("hello <|image|>", 2))
        assert caught.value.parameter == "prompt"
