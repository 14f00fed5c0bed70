"""The choice of the next token of many answers, from the logits of one run.

A row's choice depends on its logits and its chooser alone, to the bit. Sums run over blocks of one
row, and every other operation is exact or elementwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from cohort.errors import CohortError, InferenceFailed, InvalidInput
from cohort.generation import Sampling
from cohort.generative.penalties import SeenTokens, penalises

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]

GREEDY = 1e-5
"""Temperatures below this take the most likely token."""

BLOCK = 128
"""Logits that are summed, and searched, together."""

AT_ONCE = 1 << 17
"""Logits of rows that are processed together: 512 KB, which a core's cache holds."""

SORTED = 1 << 10
"""Tokens that are sorted without a histogram before."""


MAX_LOGPROBS = 20

MAX_BIASED = 1024
"""Maximum tokens with a logit_bias."""

RANGES = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
}


def check_sampling(sampling: Sampling, size: int, logprobs: int | None = None) -> None:
    """Check options against their ranges.

    size: The number of the vocabulary's ids.
    logprobs: The number of most likely tokens to report.

    Raises InvalidInput, which names the option.
    """
    for name, (low, high) in RANGES.items():
        value = getattr(sampling, name)
        if not low <= value <= high:
            raise InvalidInput(f"{name} must be from {low:g} to {high:g}, got {value:g}", name)
    if sampling.top_k < 0:
        raise InvalidInput(f"top_k must be at least 0, got {sampling.top_k}", "top_k")
    if logprobs is not None and not 0 <= logprobs <= MAX_LOGPROBS:
        raise InvalidInput(
            f"the number of logprobs must be from 0 to {MAX_LOGPROBS}, got {logprobs}", "logprobs"
        )
    if len(sampling.logit_bias) > MAX_BIASED:
        raise InvalidInput(
            f"logit_bias has {len(sampling.logit_bias)} tokens; the limit is {MAX_BIASED}",
            "logit_bias",
        )
    for token, bias in sampling.logit_bias.items():
        if not 0 <= token < size:
            raise InvalidInput(
                f"logit_bias has the token {token}; tokens are from 0 to {size - 1}", "logit_bias"
            )
        if not -100 <= bias <= 100:
            raise InvalidInput(
                f"the logit_bias of the token {token} must be from -100 to 100, got {bias:g}",
                "logit_bias",
            )


class GuideState(Protocol):
    """The tokens that may follow what was chosen so far.

    ended: True if the answer is complete, and no token may follow but an end token.
    """

    @property
    def ended(self) -> bool: ...

    def allowed(self) -> NDArray[np.bool_]:
        """Return a boolean for each token, True if it may be next. Raises CohortError.

        Tokens after the last boolean may not be next.
        """

    def accept(self, token: int) -> None:
        """Continue after `token`. Raises CohortError."""


class Chosen(NamedTuple):
    """A chosen token.

    token: Its id.
    logprob: The natural logarithm of its probability; 0 if not asked for.
    top: The most likely tokens and their logprobs, the most likely first; empty if not asked for.
    """

    token: int
    logprob: float = 0.0
    top: Sequence[tuple[int, float]] = ()


class Chooser:
    """The state of the sampling of one choice.

    greedy: True if it takes the most likely token, and draws none.
    changes: True if it changes logits before the choice.
    plain: True if it only takes the most likely token.

    sampling: The options.
    prompt: The ids of the prompt's tokens.
    choice: The number of the choice, from 0; each has other draws.
    logprobs: The number of most likely tokens to report; None: no logprobs.
    guide: The form of the answer; default: any text.
    """

    def __init__(
        self,
        sampling: Sampling,
        prompt: Sequence[int],
        *,
        choice: int = 0,
        logprobs: int | None = None,
        guide: GuideState | None = None,
    ) -> None:
        self.sampling = sampling
        self.logprobs = logprobs
        self.guide = guide
        self.greedy = sampling.temperature < GREEDY or sampling.top_k == 1
        self._seen = SeenTokens(prompt) if penalises(sampling) else None
        bias = sampling.logit_bias
        self._biased: Ids = np.fromiter(bias.keys(), np.int64, len(bias))
        self._bias: Floats = np.fromiter(bias.values(), np.float32, len(bias))
        self._random = None if self.greedy else _generator(sampling.seed, choice)
        self.changes = self._seen is not None or guide is not None or len(bias) > 0
        self.plain = self.greedy and not self.changes and logprobs is None

    @property
    def ended(self) -> bool:
        """True if the answer's form is complete."""
        return self.guide is not None and self.guide.ended

    def change(self, logits: Floats) -> Floats:
        """Return a changed copy of a row of logits. Raises the guide's CohortError."""
        changed = np.array(logits, np.float32)
        if self._seen is not None:
            self._seen.penalise(changed, self.sampling)
        if len(self._biased):
            inside = self._biased < len(changed)
            changed[self._biased[inside]] += self._bias[inside]
        if self.guide is not None:
            allowed = self.guide.allowed()[: len(changed)]
            np.putmask(changed[: len(allowed)], ~allowed, -np.inf)
            changed[len(allowed) :] = -np.inf
        return changed

    def draw(self) -> float:
        """Return the next number of its stream, in [0, 1)."""
        return float(self._random.random()) if self._random is not None else 0.0

    def record(self, token: int) -> None:
        """Note that `token` was chosen. Raises the guide's CohortError."""
        if self._seen is not None:
            self._seen.add(token)
        if self.guide is not None:
            self.guide.accept(token)


def choose(logits: Floats, choosers: Sequence[Chooser]) -> list[Chosen | CohortError]:
    """Choose the next token of each row, and record it in the row's chooser.

    logits: FP32 [rows, vocabulary]; they are not changed.
    choosers: One for each row.

    A row whose logits are not finite has an error; it does not affect the other rows.
    """
    best = logits.argmax(axis=1)  # NaN counts as the largest
    finites = np.isfinite(logits[np.arange(len(logits)), best]).tolist()
    if all(finites) and all(one.plain for one in choosers):
        return [Chosen(token) for token in best.tolist()]
    chosen: list[int | CohortError] = best.tolist()
    drawn: list[tuple[int, Floats]] = []  # rows without top_k
    for i, (chooser, finite) in enumerate(zip(choosers, finites, strict=True)):
        if not finite:
            chosen[i] = InferenceFailed("the model's logits are not finite numbers")
        elif chooser.changes or not chooser.greedy:
            try:
                row = chooser.change(logits[i]) if chooser.changes else logits[i]
                if chooser.changes:
                    _check_possible(row)
                if chooser.greedy:
                    chosen[i] = int(row.argmax())
                elif 0 < chooser.sampling.top_k < len(row):
                    chosen[i] = _draw_likely(row, chooser)
                else:
                    drawn.append((i, row))
            except CohortError as error:
                chosen[i] = error
    _draw_all(drawn, choosers, chosen)
    return [
        _record(one, row, chooser)
        for one, row, chooser in zip(chosen, logits, choosers, strict=True)
    ]


def _check_possible(row: Floats) -> None:
    peak = row.max()
    if not np.isfinite(peak):
        raise InferenceFailed(
            "no token can continue the answer in its form"
            if np.isneginf(peak)
            else "the model's logits are not finite numbers after penalties"
        )


def _record(token: int | CohortError, logits: Floats, chooser: Chooser) -> Chosen | CohortError:
    if isinstance(token, CohortError):
        return token
    try:
        chooser.record(token)
    except CohortError as error:
        return error
    if chooser.logprobs is None:
        return Chosen(token)
    return _with_logprobs(token, logits, chooser.logprobs)


def _with_logprobs(token: int, logits: Floats, count: int) -> Chosen:
    peak = logits.max()
    likely = _padded(len(logits), 1)
    _likelihoods(logits, peak, np.float32(1), out=likely[:, : len(logits)])
    norm = float(peak) + float(np.log(np.float64(_block_sums(likely).sum())))
    top = most_likely(logits, count) if count else ()
    return Chosen(
        token, float(logits[token]) - norm, [(int(one), float(logits[one]) - norm) for one in top]
    )


def most_likely(logits: Floats, count: int) -> Ids:
    """Return the ids of the `count` largest logits, the largest first; of equal ones, lower ids.

    logits: [vocabulary].
    """
    size = len(logits)
    if count * 8 >= size:
        return np.argsort(-logits, kind="stable")[:count]
    blocks = size // BLOCK
    if count <= blocks // 2:  # at least `count` logits are as large as that block's maximum
        maxima = logits[: blocks * BLOCK].reshape(blocks, BLOCK).max(axis=1)
        bound = np.partition(maxima, blocks - count)[blocks - count]
    else:
        bound = np.partition(logits, size - count)[size - count]
    found = np.flatnonzero(logits >= bound)
    ranked: Ids = found[np.argsort(-logits[found], kind="stable")[:count]]
    return ranked


def _draw_likely(row: Floats, chooser: Chooser) -> int:
    """Draw from the tokens that top_k keeps, of these top_p, of these min_p."""
    sampling = chooser.sampling
    ids = most_likely(row, sampling.top_k)
    likely = np.exp((row[ids] - row[ids[0]]) * np.float32(1 / sampling.temperature))
    sums = np.cumsum(likely, dtype=np.float64)
    kept = int(np.count_nonzero(likely >= np.float32(sampling.min_p)))
    if sampling.top_p < 1:
        kept = min(kept, int(np.searchsorted(sums, sums[-1] * sampling.top_p)) + 1)
    sums = sums[: max(kept, 1)]
    place = np.searchsorted(sums, chooser.draw() * sums[-1], side="right")
    last = np.searchsorted(sums, sums[-1])  # the tokens after it have no probability
    return int(ids[min(place, last)])


def _draw_all(
    drawn: Sequence[tuple[int, Floats]],
    choosers: Sequence[Chooser],
    chosen: list[int | CohortError],
) -> None:
    """Draw for some rows from the tokens that top_p keeps, of these min_p."""
    if not drawn:
        return
    size = len(drawn[0][1])
    count = max(AT_ONCE // size, 1)
    for start in range(0, len(drawn), count):
        part = drawn[start : start + count]
        owners = [choosers[i] for i, _ in part]
        likely = _padded(size, len(part))
        inside = likely[:, :size]
        rows = np.array([row for _, row in part], np.float32)
        scales = np.array([[1 / one.sampling.temperature] for one in owners], np.float32)
        _likelihoods(rows, rows.max(axis=1, keepdims=True), scales, out=inside)
        for row, one in zip(likely, owners, strict=True):
            if one.sampling.top_p < 1:
                _keep_nucleus(row, one.sampling.top_p)
        if any(one.sampling.min_p for one in owners):
            inside[inside < np.array([[one.sampling.min_p] for one in owners], np.float32)] = 0
        draws = np.array([one.draw() for one in owners])
        for (i, _), token in zip(part, _places(likely, draws), strict=True):
            chosen[i] = token


def _keep_nucleus(likely: Floats, top_p: float) -> None:
    """Set likelihoods to 0 but the largest ones, whose share of the sum is `top_p`.

    likely: The whole blocks of one row, of which the largest is 1.
    """
    total = float(_block_sums(likely[None]).sum())
    needed = total * top_p
    # Tokens with less than this sum to at most half of the probability that is left out.
    ids = np.flatnonzero(likely >= np.float32((total - needed) / (2 * len(likely))))
    values = likely[ids]
    before = 0.0
    if len(ids) > SORTED:
        bins = values.view(np.uint32) >> 16  # grows with the value
        sums = np.bincount(bins, weights=values)[::-1].cumsum()
        crossing = min(int(np.searchsorted(sums, needed)), len(sums) - 1)
        before = float(sums[crossing - 1]) if crossing else 0.0
        here = bins == len(sums) - 1 - crossing
        ids, values = ids[here], values[here]
    order = np.argsort(-values, kind="stable")
    sums = before + np.cumsum(values[order], dtype=np.float64)
    kept = min(int(np.searchsorted(sums, needed)) + 1, len(ids))
    likely[likely < values[order[kept - 1]]] = 0
    likely[ids[order[kept:]]] = 0


def _places(likely: Floats, draws: NDArray[np.float64]) -> list[int]:
    """Return the place in each row where the sum of its likelihoods reaches its draw."""
    rows = np.arange(len(likely))
    sums = np.cumsum(_block_sums(likely), axis=1, dtype=np.float64)
    targets = draws * sums[:, -1]
    last = (sums < sums[:, -1:]).sum(axis=1)  # the last block that is not empty
    block = np.minimum((sums <= targets[:, None]).sum(axis=1), last)
    before = np.where(block > 0, sums[rows, block - 1], 0.0)
    inside = likely.reshape(len(likely), -1, BLOCK)[rows, block]
    within = np.cumsum(inside, axis=1, dtype=np.float64)
    last = (within < within[:, -1:]).sum(axis=1)
    place = np.minimum((within <= (targets - before)[:, None]).sum(axis=1), last)
    found: list[int] = (block * BLOCK + place).tolist()
    return found


def _likelihoods(
    logits: Floats, peak: Floats | np.float32, scale: Floats | np.float32, *, out: Floats
) -> None:
    """Write the probability of each token, divided by the largest, into `out`."""
    np.subtract(logits, peak, out=out)
    np.multiply(out, scale, out=out)
    np.exp(out, out=out)


def _padded(size: int, rows: int) -> Floats:
    """Return an array of whole blocks, whose end is 0."""
    whole = -(-size // BLOCK) * BLOCK
    padded = np.empty((rows, whole), np.float32)
    padded[:, size:] = 0
    return padded


def _block_sums(likely: Floats) -> Floats:
    """Return the sum of each block of each row, [rows, blocks]."""
    sums: Floats = likely.reshape(len(likely), -1, BLOCK).sum(axis=2)
    return sums


def _generator(seed: int | None, choice: int) -> np.random.Generator:
    keys: Any = None if seed is None else [seed & (1 << 64) - 1, choice]
    return np.random.Generator(np.random.PCG64(keys))
