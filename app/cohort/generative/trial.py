"""A trial of a decoder at load: a shared step must give each sequence the logits of a lone one."""

from __future__ import annotations

from itertools import pairwise
from time import monotonic

import numpy as np

from cohort.errors import CohortError, LoadFailed
from cohort.generative.decoder import Decoder
from cohort.generative.planning import TILE
from cohort.tensors import Array

TOLERANCE = 0.05
"""The maximum difference of logits, relative to their range."""


EXACT_SECONDS = 8.0
"""Maximum time to compare a prompt in several parts."""


def try_decoder(decoder: Decoder) -> None:
    """Run two prompts alone and together. Raises LoadFailed.

    A provider or a graph may mix sequences, or not keep their keys and values in place. It would
    give callers parts of others' answers.
    """
    if decoder.slots < 2 or decoder.length < 8:
        return
    prompts = [[one % decoder.vocabulary for one in range(*ends)] for ends in ((1, 5), (7, 10))]
    try:
        alone = [_continue(decoder, [prompt])[0] for prompt in prompts]
        together = _continue(decoder, prompts)
    except CohortError as error:
        raise LoadFailed(f"its first tokens failed: {error}") from error
    for one, other in zip(alone, together, strict=True):
        scale = max(float(np.ptp(one)), 1e-6)
        if not np.isfinite(one).all():
            raise LoadFailed("its logits are not numbers")
        if float(np.abs(np.subtract(one, other)).max()) > TOLERANCE * scale:
            raise LoadFailed(
                "sequences influence each other: a step of two does not give the logits of each "
                "alone"
            )


def try_last_place(decoder: Decoder) -> None:
    """Run a token at the end of the context. Raises LoadFailed.

    A graph may know fewer positions than its description states. One long answer would then fail
    the step of all others.
    """
    try:
        decoder.decode(np.zeros(1, np.int64), np.array([decoder.length]))
    except CohortError as error:
        raise LoadFailed(f"a token at place {decoder.length} failed: {error}") from error
    decoder.free(0)


def parts_are_exact(decoder: Decoder, unit: int, most: int) -> bool:
    """Return True if the bits of a prompt do not depend on the lengths of its runs.

    unit, most: The shortest and the longest part.

    False also if a large model takes too long to find out, or the context is short.
    """
    body = min(most, decoder.length - unit - 1) // TILE * TILE
    if body <= 0:
        return False
    prompt = [(7 * one + 3) % decoder.vocabulary for one in range(body + unit + 1)]
    rests = range(2, unit + 2)
    found: list[list[Array]] = []
    try:
        until = monotonic() + EXACT_SECONDS
        for size, last in ((body, body), (unit, body - unit), (2 * unit, body - unit), (body, 0)):
            for first, stop in pairwise([*range(0, body, size), body]):
                decoder.prefill(0, prompt[first:stop], first)
            found.append([decoder.read(0, 0, body)])
            for rest in rests:
                if monotonic() > until:
                    decoder.free(0)
                    return False
                logits = decoder.prefill(0, prompt[last : body + rest], last)
                found[-1] += [logits.copy(), decoder.read(0, body, body + rest)]
    except CohortError as error:
        raise LoadFailed(f"its first tokens failed: {error}") from error
    decoder.free(0)
    return all(
        np.array_equal(one, other)
        for again in found[1:]
        for one, other in zip(found[0], again, strict=True)
    )


def _continue(decoder: Decoder, prompts: list[list[int]]) -> list[Array]:
    """Return the logits behind each prompt and one more token."""
    for slot, prompt in enumerate(prompts):
        decoder.prefill(slot, prompt[:2], 0)
        decoder.prefill(slot, prompt[2:], 2)
    tokens = np.array([prompt[0] for prompt in prompts], np.int64)
    lengths = np.array([len(prompt) + 1 for prompt in prompts], np.int64)
    logits = [one.copy() for one in decoder.decode(tokens, lengths)]
    for slot in range(len(prompts)):
        decoder.free(slot)
    return logits
