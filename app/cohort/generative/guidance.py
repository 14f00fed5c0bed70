"""Answers that have a form: a JSON object, an instance of a JSON schema, or a regular language."""

from __future__ import annotations

from cohort.errors import InvalidInput
from cohort.generation import Guide
from cohort.generative.sampling import GuideState
from cohort.generative.vocabulary import Vocabulary


class CompiledGuide:
    """The grammar of a guide, for a vocabulary."""

    def start(self) -> GuideState:
        """Return the state at the beginning of an answer; one for each choice."""
        raise NotImplementedError


def compile_guide(guide: Guide, vocabulary: Vocabulary) -> CompiledGuide:
    """Compile the grammar of a guide, on a thread.

    Raises InvalidInput if the grammar is wrong, not supported, or too large.
    """
    raise InvalidInput(f"{guide.kind} is not supported ({vocabulary.size})", "response_format")
