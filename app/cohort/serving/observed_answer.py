"""Evidence for rollouts from the answers of language models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cohort.batching import Outputs
from cohort.errors import CohortError
from cohort.generation import GenerationReply, Piece, PreparedGeneration, Usage
from cohort.rollouts import ObservedRequest
from cohort.serving.prompts import prompts_of
from cohort.serving.served import ServedVersion


class ObservedAnswer:
    """Passes an answer on, and reports the whole text as tensors. Implements `GenerationReply`.

    prepared: The request.
    reply: Receives the answer.
    observed: Reports the request to the rollout that chose the version.
    served: The version.
    """

    def __init__(
        self,
        prepared: PreparedGeneration,
        reply: GenerationReply,
        observed: ObservedRequest,
        served: ServedVersion,
    ) -> None:
        self._reply = reply
        prompts = prompts_of(prepared)
        self._choices = prepared.request.choices
        self._texts: list[list[str]] = [[] for _ in range(self._choices * len(prompts))]
        self._usage = Usage(0, 0)
        asked = {served.inputs[0].name: np.array([one.text for one in prompts], object)}
        self._ended = observed.submitted(asked, served.outputs, self._end, tight_deadline=False)

    def pieces(self, pieces: Sequence[Piece]) -> None:
        """See `GenerationReply`."""
        for piece in pieces:
            self._texts[piece.choice].append(piece.text)
        self._reply.pieces(pieces)

    def ended(self, usage: Usage, error: CohortError | None) -> None:
        """See `GenerationReply`."""
        self._usage = usage
        texts = np.array(["".join(text) for text in self._texts[:: self._choices]], object)
        self._ended(None if error else [texts], error)

    def _end(self, outputs: Outputs | None, error: CohortError | None) -> None:
        del outputs
        self._reply.ended(self._usage, error)
