"""Evidence for rollouts from the answers of language models."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from cohort.batching import Outputs
from cohort.errors import CohortError
from cohort.generation import GenerationReply, Piece, PreparedGeneration, TextInputs, Usage
from cohort.rollouts import ObservedRequest
from cohort.serving.prompts import prompts_of
from cohort.serving.served import ServedVersion


class ObservedAnswer:
    """Passes an answer on, and reports the whole text as tensors. Implements `GenerationReply`.

    A stream that an error cuts is a failure, whatever its caller got before. A caller that leaves
    while it gets its answer does not count. Only greedy answers are reported with their text,
    because others may differ in every run: a shadow has nothing to compare.

    prepared: The request.
    reply: Receives the answer.
    observed: Reports the request to the rollout that chose the version.
    served: The version.
    tight_deadline: True if the caller set a shorter limit than the model's timeout.
    """

    def __init__(
        self,
        prepared: PreparedGeneration,
        reply: GenerationReply,
        observed: ObservedRequest,
        served: ServedVersion,
        *,
        tight_deadline: bool,
    ) -> None:
        self._reply = reply
        self._observed = observed
        self._used: list[Usage] = []  # the answer's tokens, once it has ended
        prompts = prompts_of(prepared)
        requests = [one.request for one in prompts]
        self._greedy = all(one.sampling.temperature == 0 for one in requests)
        choices = sum(one.choices for one in requests)
        self._texts: list[list[str]] = [[] for _ in range(choices if self._greedy else 0)]
        name = served.inputs[0].name
        asked = TextInputs({name: np.array([one.text for one in prompts], object)}, requests)
        self._ended = observed.submitted(
            asked, served.outputs, partial(_end, reply, self._used), tight_deadline=tight_deadline
        )

    def pieces(self, pieces: Sequence[Piece]) -> None:
        """See `GenerationReply`."""
        self._observed.answering()
        if self._greedy:
            for piece in pieces:
                self._texts[piece.choice].append(piece.text)
        self._reply.pieces(pieces)

    def ended(self, usage: Usage, error: CohortError | None) -> None:
        """See `GenerationReply`."""
        self._used.append(usage)
        if error is None and self._greedy:
            texts = ["".join(parts) for parts in self._texts]
            self._ended([np.array(texts, object)], None)
        else:
            self._ended(None, error)


def _end(
    reply: GenerationReply, used: Sequence[Usage], _: Outputs | None, error: CohortError | None
) -> None:
    """End the answer. As a method of `ObservedAnswer` it would be in a reference cycle."""
    reply.ended(used[-1], error)
