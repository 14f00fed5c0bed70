"""One model: its requests, asked alone and in company, over each API."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from grpc.aio import AioRpcError

from cohort.comparing import ROUNDED_ONCE_MORE, SAME_BITS, SAME_ROW, OutputDifference, Pair, compare
from cohort.errors import CohortError
from cohort.profiling import Trial, find_trial
from cohort.profiling.exactness import same_bytes
from cohort.session import Opener, Session
from cohort.tensors import Arrays, TensorSpec
from tests.e2e.asking import APIS, CALLERS, Ask, asking
from tests.e2e.processes import Cohort
from tests.e2e.scrape import Scrape
from tests.waiting import until

DRAWN = 3 * CALLERS
"""Requests that are drawn of a model; it need not take all of them."""

LARGE, FEWER = 200_000, 4
"""Numbers of a request and its answer from which on there are fewer callers: JSON takes long."""

FEW_ROUNDS = 2
"""Where no run is shared."""

AUDIO, STATE = (256, 512), {"state": 1}
"""Samples that models of speech take, where a trial finds none, and the axis of rows of a state."""

SEVERAL = (2, 3)
"""The rows of two of its requests; the others have one."""


@dataclass(frozen=True, slots=True)
class Questions:
    """Requests that a model takes, and the APIs that carry its answers: JSON has no NaN."""

    requests: Sequence[Arrays]
    outputs: Sequence[TensorSpec]
    apis: Sequence[str] = APIS


@dataclass(slots=True)
class Outcome:
    """The outcome of a model's requests.

    batching: The server's description of its batching.
    rounds: Rounds of all requests at once, for each API.
    asked, runs: Requests in those rounds, and the runs that they took.
    compared: Answers compared with that of the same request alone, over any API.
    other_bits: Those of which any bit differs.
    rounded: Those that differ by more than the order of additions explains.
    wrong: Those that differ by more than rounding explains.
    furthest: The largest difference, relative to the larger number.
    problem: Why there is nothing more.
    """

    batching: Mapping[str, Any] = field(default_factory=dict)
    rounds: list[int] = field(default_factory=list)
    asked: int = 0
    runs: float = 0.0
    compared: int = 0
    other_bits: int = 0
    rounded: int = 0
    wrong: int = 0
    furthest: float = 0.0
    problem: str = ""

    def judge(self, expected: Sequence[Arrays], got: Sequence[Arrays]) -> None:
        """Count how answers differ from those that were expected."""
        pairs = [Pair(*both) for both in zip(expected, got, strict=True)]
        self.compared += len(pairs)
        pairs = [one for one in pairs if not same_bytes(one)]
        if not pairs:
            return
        bits = compare(pairs, SAME_BITS)
        self.other_bits += _differing(bits)
        self.furthest = max(
            self.furthest, *(one.relative or 0.0 for found in bits for one in found)
        )
        self.rounded += _differing(compare(pairs, SAME_ROW))
        self.wrong += _differing(compare(pairs, ROUNDED_ONCE_MORE))


def find_questions(path: Path) -> Questions:
    """Return a request for each caller, of varied values. Raises CohortError."""
    session = Opener(path).open()
    try:
        trial = _find_trial(session)
        outputs = [one for one in session.outputs if one.transportable]
        answer = session.run(trial.feeds(1))
        numbers = sum(one.size for one in [*trial.feeds(1).values(), *answer])
        callers = FEWER if numbers > LARGE else CALLERS
        drawn = [*map(trial.feeds, SEVERAL), *reversed(trial.requests(DRAWN))]
        for apis in (APIS, ("gRPC",)):
            taken = (one for one in drawn if _is_taken(session, one, finite=apis == APIS))
            if found := list(islice(taken, callers)):
                return Questions(list(islice(cycle(found), callers)), outputs, apis)
        raise CohortError("it takes no generated input again")
    finally:
        session.close()


def _find_trial(session: Session) -> Trial:
    trial = find_trial(session.run, session.inputs, session.rows.axes, session.tables)
    if not trial.problem:
        return trial
    axes = {one.name: STATE.get(one.name, 0 if one.shape else None) for one in session.inputs}
    for samples in AUDIO:
        audio = Trial(session.inputs, samples, axes=axes)
        if _is_taken(session, audio.feeds(1), finite=True):
            return audio
    raise CohortError(f"not run with generated inputs: {trial.problem}")


def _is_taken(session: Session, request: Arrays, *, finite: bool) -> bool:
    try:
        answer = session.run(request)
    except CohortError:
        return False
    floats = [one for one in answer if one.dtype.kind == "f"]
    return not finite or all(np.isfinite(one).all() for one in floats)


async def try_model(
    server: Cohort, model: str, questions: Questions, *, rounds: int, seconds: float
) -> Outcome:
    """Ask a model that a server has: each request alone, then all at once.

    rounds: Number of rounds, over each API.
    seconds: Time on an API after which no further round begins.
    """
    outcome = Outcome()
    try:
        await until(lambda: _state(server, model)["state"] not in {"LOADING", "UNLOADING"})
        if _state(server, model)["state"] != "READY":
            raise CohortError(_state(server, model)["reason"])
        with suppress(TimeoutError):
            await until(lambda: _is_measured(_state(server, model)["batching"]))
        if not _state(server, model)["batching"]["on"]:
            rounds = min(rounds, FEW_ROUNDS)
        expected: list[Arrays] = []
        for api in questions.apis:
            async with asking(server, api) as ask:
                alone = [_arrays(await ask(model, one), questions) for one in questions.requests]
                expected = expected or alone
                outcome.judge(expected, alone)
                await _together(outcome, server, model, questions, expected, ask, rounds, seconds)
        outcome.batching = _state(server, model)["batching"]
    except (AssertionError, AioRpcError, CohortError, TimeoutError, httpx.HTTPError) as error:
        outcome.problem = str(error) or type(error).__name__
    return outcome


async def _together(
    outcome: Outcome, server: Cohort, model: str, questions: Questions,
    expected: Sequence[Arrays], ask: Ask, rounds: int, seconds: float,
) -> None:  # fmt: skip
    before, ends = _runs(server, model), time.monotonic() + seconds
    outcome.rounds.append(0)
    while outcome.rounds[-1] < rounds and (not outcome.rounds[-1] or time.monotonic() < ends):
        answers = await asyncio.gather(*[ask(model, one) for one in questions.requests])
        outcome.judge(expected, [_arrays(one, questions) for one in answers])
        outcome.rounds[-1] += 1
        outcome.asked += len(answers)
    outcome.runs += _runs(server, model) - before


def _state(server: Cohort, model: str) -> Mapping[str, Any]:
    found = server.get(f"/models/{model}").json()
    version: Mapping[str, Any] = found.get("versions", [{"state": "LOADING"}])[0]  # yet unseen
    return version


def _is_measured(batching: Mapping[str, Any]) -> bool:
    return "measured" not in batching["reason"] + batching["exact_reason"]


def _runs(server: Cohort, model: str) -> float:
    return Scrape(server.url).value("model_batch_rows_count", model=model)


def _arrays(answer: Mapping[str, Any], questions: Questions) -> Arrays:
    """Return the outputs as the model has them: JSON has as many digits as distinguish numbers."""
    if set(answer) == {""}:  # V1 leaves out the name of an only output
        answer = {questions.outputs[0].name: answer[""]}
    arrays = {one.name: np.asarray(answer[one.name], one.dtype) for one in questions.outputs}
    return {name: one if one.size else one.ravel() for name, one in arrays.items()}


def _differing(compared: Sequence[Sequence[OutputDifference]]) -> int:
    return sum(any(one.disagrees for one in found) for found in compared)
