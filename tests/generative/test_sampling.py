"""The choice of the next tokens, compared with a plain float64 implementation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cohort.errors import CohortError, InferenceFailed, InvalidInput
from cohort.generation import Sampling
from cohort.generative.sampling import Chooser, Chosen, check_sampling, choose, most_likely

SIZES = st.sampled_from([1, 2, 7, 128, 130, 401, 3000])


@st.composite
def samplings(draw: st.DrawFn) -> Sampling:
    """Return options, each of which has no effect in half of the cases."""
    return Sampling(
        temperature=draw(st.sampled_from([0, 0.3, 1.0, 1.0, 2.0])),
        top_k=draw(st.sampled_from([0, 0, 0, 1, 3, 50, 100_000])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.0, 0.5, 0.9, 0.999999])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.05, 1.0])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.3])),
        presence_penalty=draw(st.sampled_from([0.0, 0.0, 0.5])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.0, -0.7])),
        logit_bias=draw(st.sampled_from([{}, {0: 3.0, 1: -100.0}])),
        seed=draw(st.integers(-(1 << 63), 1 << 63)),
    )


def make_logits(rows: int, size: int, seed: int, *, scale: float, ties: bool) -> Any:
    logits = np.random.default_rng(seed).standard_normal((rows, size)) * scale
    return (np.rint(logits) if ties else logits).astype(np.float32)


def expected(
    logits: NDArray[np.float32], sampling: Sampling, prompt: Sequence[int], answer: Sequence[int]
) -> dict[int, float]:
    """Return the tokens that may be drawn, and their probabilities."""
    values = logits.astype(np.float64)
    for token in {*prompt, *answer}:
        penalty = sampling.repetition_penalty
        values[token] = values[token] / penalty if values[token] > 0 else values[token] * penalty
    for token, count in Counter(answer).items():
        values[token] -= sampling.frequency_penalty * count + sampling.presence_penalty
    for token, bias in sampling.logit_bias.items():
        if token < len(values):
            values[token] += bias
    order = np.argsort(-values, kind="stable")
    if sampling.temperature == 0:
        return {int(order[0]): 1.0}
    order = order[: sampling.top_k or None]
    weights = np.exp((values[order] - values[order[0]]) / sampling.temperature)
    sums = np.cumsum(weights) / weights.sum()
    kept = np.concatenate([[True], sums[:-1] < sampling.top_p + 1e-5])
    kept &= weights >= sampling.min_p - 1e-6
    weights = np.where(kept, weights, 0)
    return {
        int(token): weight / weights.sum()
        for token, weight in zip(order, weights, strict=True)
        if weight
    }


def tokens_of(chosen: Sequence[Chosen | CohortError]) -> list[int]:
    return [one.token for one in chosen if isinstance(one, Chosen)]


@given(samplings(), SIZES, st.integers(0, 1 << 30), st.sampled_from([0.1, 3.0]), st.booleans())
def test_draws_only_tokens_that_the_options_keep(
    sampling: Sampling, size: int, seed: int, scale: float, ties: bool
) -> None:
    """Each token is one that all options keep, with penalties for all tokens before it."""
    (logits,) = make_logits(1, size, seed, scale=scale, ties=ties)
    prompt = [token for token in (0, 2, 5) if token < size]
    chooser = Chooser(sampling, prompt)
    answer: list[int] = []
    for _ in range(4):
        (token,) = tokens_of(choose(logits[None], [chooser]))
        assert token in expected(logits, sampling, prompt, answer)
        answer.append(token)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.5),
        Sampling(top_p=0.8),
        Sampling(top_k=3),
        Sampling(top_k=4, top_p=0.9, min_p=0.2),
        Sampling(min_p=0.1),
        Sampling(logit_bias={0: -2.0}),
    ],
)
@pytest.mark.parametrize("size", [6, 1100])
def test_draws_have_the_probabilities(sampling: Sampling, size: int) -> None:
    """Of many draws, each token has its share, and each token that is kept is drawn."""
    logits = np.full(size, -4.0, np.float32)
    logits[[0, 1, 2, size - 3, size - 2, size - 1]] = [2, 1.5, 1, 3, 0, 2.5]
    shares = expected(logits, sampling, (), ())
    count = 2000
    choosers = [Chooser(replace(sampling, seed=seed), ()) for seed in range(count)]
    found = Counter(tokens_of(choose(np.tile(logits, (count, 1)), choosers)))
    assert set(found) <= set(shares)
    for token, share in shares.items():
        assert abs(found[token] - share * count) <= 5 * (share * count) ** 0.5 + 5


@given(
    st.lists(samplings(), min_size=1, max_size=9),
    SIZES,
    st.integers(0, 1 << 30),
    st.sampled_from([0.1, 3.0]),
    st.randoms(use_true_random=False),
)
def test_choice_does_not_depend_on_other_rows(
    options: list[Sampling], size: int, seed: int, scale: float, random: Any
) -> None:
    """Alone, in any order and in any layout of memory, tokens and logprobs are equal to the bit."""

    def choosers() -> list[Chooser]:
        return [
            Chooser(one, [0], choice=i, logprobs=3 if i % 2 else None)
            for i, one in enumerate(options)
        ]

    steps = make_logits(3 * len(options), size, seed, scale=scale, ties=False)
    steps = steps.reshape(3, len(options), size)
    together = choosers()
    wanted = [choose(step, together) for step in steps]

    alone = choosers()
    for step, ones in zip(steps, wanted, strict=True):
        assert [choose(step[i : i + 1], [alone[i]])[0] for i in range(len(alone))] == ones

    order = list(range(len(options)))
    random.shuffle(order)
    shuffled = [choosers()[i] for i in order]
    for step, ones in zip(steps, wanted, strict=True):
        spread = np.zeros((len(order), 2, size + 3), np.float32)
        spread[:, -1, 1:-2] = step[order]
        assert choose(spread[:, -1, 1:-2], shuffled) == [ones[i] for i in order]


@given(
    st.integers(0, 1 << 30),
    st.sampled_from([0.8, 1.0, 1.7]),
    st.sampled_from([-1.0, 0.0, 0.5]),
    st.sampled_from([-0.5, 0.0, 0.5]),
)
def test_penalties_and_biases_change_the_most_likely_token(
    seed: int, repetition: float, presence: float, frequency: float
) -> None:
    """With temperature 0, each token is the most likely one after all of them."""
    (logits,) = make_logits(1, 40, seed, scale=0.5, ties=False)
    sampling = Sampling(
        temperature=0,
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        logit_bias={3: 0.5, 4: -0.5},
    )
    prompt = [1, 1, 2, 3, *range(20, 30)]
    chooser = Chooser(sampling, prompt)
    answer: list[int] = []
    for _ in range(30):
        (token,) = tokens_of(choose(logits[None], [chooser]))
        assert [token] == list(expected(logits, sampling, prompt, answer))
        answer.append(token)


@given(st.integers(0, 1 << 30), SIZES, st.booleans())
def test_logprobs_are_those_of_the_model(seed: int, size: int, ties: bool) -> None:
    """They are the log-softmax of the logits before any option; of equal tokens, lower ids win."""
    (logits,) = make_logits(1, size, seed, scale=3.0, ties=ties)
    sampling = Sampling(temperature=0.3, presence_penalty=1, logit_bias={0: 5.0}, seed=seed)
    (chosen,) = choose(logits[None], [Chooser(sampling, [0], logprobs=20)])
    assert isinstance(chosen, Chosen)
    values = logits.astype(np.float64)
    logprobs = values - np.log(np.exp(values).sum())
    order = np.argsort(-logits, kind="stable")[:20]
    assert [token for token, _ in chosen.top] == order.tolist()
    assert [one for _, one in chosen.top] == pytest.approx(logprobs[order], abs=1e-4)
    assert chosen.logprob == pytest.approx(logprobs[chosen.token], abs=1e-4)


@example(0, 5000, 60, False)
@given(st.integers(0, 1 << 30), st.integers(1, 5000), st.integers(1, 100), st.booleans())
def test_most_likely_tokens_are_exact(seed: int, size: int, count: int, ties: bool) -> None:
    """They are those of a stable sort, for all sizes and counts."""
    (logits,) = make_logits(1, size, seed, scale=3.0, ties=ties)
    logits[::3] = -np.inf
    count = min(count, size)
    assert most_likely(logits, count).tolist() == (
        np.argsort(-logits, kind="stable")[:count].tolist()
    )


def test_choices_of_a_seed_differ_and_repeat() -> None:
    """Each choice of a request has its own draws; the same request has the same draws."""
    logits = np.zeros((1, 1000), np.float32)

    def answer(seed: int | None, choice: int) -> list[int]:
        chooser = Chooser(Sampling(seed=seed), (), choice=choice)
        return [token for _ in range(5) for token in tokens_of(choose(logits, [chooser]))]

    answers = [answer(seed, choice) for seed in (0, 7, None) for choice in range(3)]
    assert len({tuple(one) for one in answers}) == 9
    assert answer(7, 1) == answer(7, 1) == answers[4]
    assert answer(None, 0) != answer(None, 0)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=0), Sampling(), Sampling(top_k=3, presence_penalty=1)]
)
def test_row_without_numbers_fails_alone(wrong: float, sampling: Sampling) -> None:
    """A row with NaN or infinity, or with no token at all, has an error; the others continue."""
    logits = make_logits(3, 50, 1, scale=1, ties=False)
    logits[1, 20] = wrong
    if wrong < 0:
        logits[1] = wrong
    options = replace(sampling, seed=1)
    chosen = choose(logits, [Chooser(options, (), choice=i) for i in range(3)])
    assert isinstance(chosen[1], InferenceFailed)
    assert "not finite" in chosen[1].message
    for i in (0, 2):
        assert choose(logits[i : i + 1], [Chooser(options, (), choice=i)]) == [chosen[i]]


def test_impossible_tokens_are_not_drawn() -> None:
    """Tokens whose logits are -inf have no probability, whatever the temperature."""
    logits = np.full((1, 300), -np.inf, np.float32)
    logits[0, [5, 299]] = 1.0
    for sampling in (Sampling(), Sampling(temperature=2.0), Sampling(top_k=200, top_p=1.0)):
        chooser = Chooser(replace(sampling, seed=3), ())
        drawn = [token for _ in range(40) for token in tokens_of(choose(logits, [chooser]))]
        assert set(drawn) == {5, 299}


@pytest.mark.parametrize(
    ("sampling", "logprobs", "named"),
    [
        (Sampling(temperature=-0.1), None, "temperature"),
        (Sampling(temperature=float("nan")), None, "temperature"),
        (Sampling(top_k=-1), None, "top_k"),
        (Sampling(top_p=1.1), None, "top_p"),
        (Sampling(min_p=-1.0), None, "min_p"),
        (Sampling(repetition_penalty=0.0), None, "repetition_penalty"),
        (Sampling(presence_penalty=2.5), None, "presence_penalty"),
        (Sampling(frequency_penalty=-2.5), None, "frequency_penalty"),
        (Sampling(logit_bias={50: 1.0}), None, "logit_bias"),
        (Sampling(logit_bias={-1: 1.0}), None, "logit_bias"),
        (Sampling(logit_bias={1: float("nan")}), None, "logit_bias"),
        (Sampling(logit_bias=dict.fromkeys(range(1025), 1.0)), None, "logit_bias"),
        (Sampling(), 21, "logprobs"),
    ],
)
def test_options_outside_of_their_ranges_are_named(
    sampling: Sampling, logprobs: int | None, named: str
) -> None:
    """The error names the option and its range."""
    with pytest.raises(InvalidInput) as caught:
        check_sampling(sampling, 50, logprobs)
    assert caught.value.parameter == named
    check_sampling(Sampling(), 50, 20)
