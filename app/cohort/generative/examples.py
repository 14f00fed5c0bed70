"""Examples of a language model: at load, each is generated at temperature 0, and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from time import monotonic
from typing import NamedTuple

from cohort.errors import CohortError, LoadFailed, quoted
from cohort.generation import Conversation, GenerationRequest, Piece, Prompt, Sampling, Usage
from cohort.generative.decoder import Decoder
from cohort.generative.engine import SIGNATURE
from cohort.generative.preparing import Limits, prepare
from cohort.generative.sequence import ChoiceSequence, TextTicket
from cohort.generative.steps import GenerationRun, Prefill, RunPlan
from cohort.generative.vocabulary import Vocabulary
from cohort.repository import (
    MANIFEST_FILE,
    MAX_ANSWER_TOKENS,
    MAX_TEXTS,
    GivenExample,
    Manifest,
    TextExample,
    parse_text_example,
)
from cohort.tensors import Array

TRIED_TOKENS = 8
"""Maximum tokens of an answer that is not compared."""

SHOWN_BEFORE, SHOWN_AFTER = 20, 8
"""Characters in front of a difference, and tokens after it, that messages show."""

Named = tuple[str, TextExample]
"""An example, and its name in messages."""


def examples_of_config(given: Sequence[GivenExample]) -> list[Named]:
    """Return the examples of a config. Raises LoadFailed."""
    found: list[Named] = []
    for number, one in enumerate(given, 1):
        called = f"example {number} of config.yaml"
        try:
            found += [(called, text) for text in _read(one)]
        except LoadFailed as error:
            raise LoadFailed(f"{called}: {error}") from None
    return _bounded(found, "config.yaml")


def _read(given: GivenExample) -> Sequence[TextExample]:
    if isinstance(given, str):
        raise LoadFailed("must be a prompt, such as {prompt: Hello, answer: Hi}, not a file")
    if list(given) != ["text_input"]:
        return [parse_text_example(given)]
    texts = given["text_input"]
    listed = texts if isinstance(texts, list) else [texts]
    return [parse_text_example({"prompt": text}) for text in listed]


def examples_of_manifest(manifest: Manifest | None) -> list[Named]:
    """Return the examples of a manifest: its texts, and tensors of texts. Raises LoadFailed."""
    if manifest is None:
        return []
    found = [
        (f"text {number} of its manifest", one) for number, one in enumerate(manifest.texts, 1)
    ]
    for number, example in enumerate(manifest.examples, 1):
        called = f"example {number} of its {MANIFEST_FILE}"
        inputs = example.input_arrays(SIGNATURE.inputs)["text_input"]
        outputs: Array | None = example.outputs.get("text_output")
        if outputs is None or outputs.shape != inputs.shape:
            raise LoadFailed(f"{called} needs a 'text_output' for each 'text_input'")
        rows = zip(inputs.tolist(), outputs.tolist(), strict=True)
        found += [(called, TextExample(str(text), answer=str(answer))) for text, answer in rows]
    return _bounded(found, MANIFEST_FILE)


def _bounded(found: list[Named], file: str) -> list[Named]:
    if len(found) > MAX_TEXTS:
        raise LoadFailed(f"{file} has {len(found)} texts as examples; the limit is {MAX_TEXTS}")
    return found


def check_examples(answers: GreedyAnswers, examples: Sequence[Named], provider: str) -> None:
    """Generate the answers of all examples.

    provider: The active execution provider, for messages.

    Raises LoadFailed if one fails, or differs from the expected one.
    """
    for one in examples:
        answer_as_expected(answers, one, provider)


def answer_as_expected(answers: GreedyAnswers, named: Named, provider: str) -> GreedyAnswer:
    """Generate the answer to an example. Raises as `check_examples` does."""
    called, example = named
    if (example.prompt is None) == (example.messages is None):
        raise LoadFailed(f"{called} needs a prompt or messages")
    try:
        got = answers.answer(example)
    except CohortError as error:
        raise LoadFailed(f"{called}: {error}") from error
    if difference := explain_difference(example, got):
        raise LoadFailed(
            f"{called}, {_shown(example)}, has another answer here, on {provider}: {difference}"
        )
    return got


def _shown(example: TextExample) -> str:
    """Return a prompt for messages: of a chat, the last message."""
    last = example.messages[-1].get("content") if example.messages else example.prompt
    return quoted(str(last))


class GreedyAnswer(NamedTuple):
    """The answer to an example; it ends a little after a difference from the expected one."""

    text: str
    tokens: Sequence[int]


def explain_difference(expected: TextExample, got: GreedyAnswer) -> str:
    """Return how an answer differs from the expected one; "" if it does not."""
    if expected.answer not in (None, got.text):
        wanted = expected.answer or ""
        start = max(_common(wanted, got.text) - SHOWN_BEFORE, 0)
        where = f" from character {start + 1}" if start else ""
        return f"expected {quoted(wanted[start:])}{where}, got {quoted(got.text[start:])}"
    if expected.tokens is not None and list(got.tokens) != list(expected.tokens):
        start = _common(expected.tokens, got.tokens)
        return f"expected {_token(expected.tokens, start)}, got {_token(got.tokens, start)}"
    return ""


def _common(one: Sequence[object], other: Sequence[object]) -> int:
    """Return the length of the common beginning."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _token(tokens: Sequence[int], place: int) -> str:
    return f"token {tokens[place]} at place {place + 1}" if place < len(tokens) else "the end"


@dataclass(frozen=True, slots=True)
class GreedyAnswers:
    """Generates answers at temperature 0, before the model serves. Used on one thread.

    decoder: Runs the model, in its first slot.
    vocabulary: Its tokens.
    limits: The limits of requests.
    sampling: The model's defaults.
    part: The tokens of a part of a prompt; other parts would give the same bits.
    check: Called before each step; its exception ends the work.
    """

    decoder: Decoder
    vocabulary: Vocabulary
    limits: Limits
    sampling: Sampling
    part: int
    check: Callable[[], None]

    def answer(self, example: TextExample) -> GreedyAnswer:
        """Generate the answer to an example. Raises CohortError.

        After a difference, it has SHOWN_AFTER more tokens.
        """
        compared = example.answer is not None or example.tokens is not None
        most = example.max_tokens or (MAX_ANSWER_TOKENS if compared else TRIED_TOKENS)
        sampling = replace(self.sampling, temperature=0.0)
        request = GenerationRequest(_prompt(example), sampling=sampling)
        prepared = prepare(request, self.vocabulary, self.limits)
        prepared = replace(prepared, max_tokens=min(most, prepared.max_tokens))
        ticket = TextTicket(prepared, _NoReply(), timeout=0.0, on_cancel=_ignore, on_over=_never)
        text, tokens, left = "", list[int](), SHOWN_AFTER
        try:
            for piece in self._pieces(ChoiceSequence(ticket, 0, self.vocabulary)):
                text += piece.text
                tokens += piece.tokens
                left -= not _continues(example, text, tokens)
                if left < 0:
                    break
        finally:
            self.decoder.free(0)
        return GreedyAnswer(text, tokens)

    def _pieces(self, sequence: ChoiceSequence) -> Iterator[Piece]:
        sequence.slot = 0
        while not sequence.finish:
            self.check()
            plan = RunPlan()
            if sequence.decodes:
                plan.decoding = [sequence]
            else:
                stop = min(sequence.cached + self.part, sequence.body)
                stop = stop if stop > sequence.cached else sequence.prompt
                plan.prefills = [Prefill(sequence, stop, (), self.part)]
            run = GenerationRun(self.decoder, plan, _ignore, expected=0.0, started=monotonic())
            run.execute()
            for result in run.results:
                for _, error in result.failed:
                    raise error
                yield from (piece for _, _, piece in result.pieces)


def _prompt(example: TextExample) -> Prompt:
    if example.messages is not None:
        return Conversation(example.messages)
    return "" if example.prompt is None else example.prompt


def _continues(expected: TextExample, text: str, tokens: Sequence[int]) -> bool:
    """Return True if an answer that begins so may still become the expected one."""
    if expected.answer is not None and not expected.answer.startswith(text):
        return False
    return expected.tokens is None or tuple(tokens) == expected.tokens[: len(tokens)]


class _NoReply:
    """Receives nothing. Implements `GenerationReply`."""

    def pieces(self, pieces: Sequence[Piece]) -> None: ...

    def ended(self, usage: Usage, error: CohortError | None) -> None: ...


def _ignore(event: object) -> None: ...


def _never(then: object) -> bool:
    del then
    return False
