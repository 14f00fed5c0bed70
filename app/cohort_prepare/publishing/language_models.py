"""Language models before they are published: their files, and their answers to examples."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from cohort.errors import LoadFailed
from cohort.generative.examples import GreedyAnswers, check_examples
from cohort.generative.factory import GenerativeEngines
from cohort.generative.version_folder import model_files
from cohort.inspection import InspectionLimits, Inspector
from cohort.onnx_engine import VersionOpener
from cohort.registry import Source
from cohort.repository import (
    MAX_TEXTS,
    GenerationPolicy,
    MeasuredOn,
    ModelConfig,
    TextExample,
    parse_text_example,
)
from cohort.session import CancellationToken, Digests
from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.publishing.evidence import measured_on

RECORDED_TOKENS = 16
"""Maximum tokens of an answer whose example does not set `max_tokens`."""

MAX_TEXTS_BYTES = 1 << 20

GENERATED = "Hello"
"""The prompt, if no examples are given."""


def copy_files(model: Path, folder: Path) -> dict[str, str]:
    """Copy the files of a model; return their digests by name, that of `model` first."""
    names = model_files(model)
    for name in names:
        shutil.copyfile(model.parent / name, folder / name)
    digests = Digests()
    ordered = sorted(names, key=lambda name: name != model.name)
    return {name: digests.of(folder / name) for name in ordered}


def read_texts(path: Path) -> list[TextExample]:
    """Read examples from a JSON lines file. Raises Misused."""
    try:
        if path.stat().st_size > MAX_TEXTS_BYTES:
            raise Misused(f"{path} is larger than {MAX_TEXTS_BYTES >> 20} MiB")
        lines = path.read_text(encoding="utf-8").splitlines()
        found = [parse_text_example(json.loads(line)) for line in lines if line.strip()]
    except (OSError, ValueError, TypeError, LoadFailed) as error:
        raise Misused(f'{path}: must have lines such as {{"prompt": "Hello"}}: {error}') from error
    if not 0 < len(found) <= MAX_TEXTS:
        raise Misused(f"{path} must have 1 to {MAX_TEXTS} examples, got {len(found)}")
    return found


def answer_texts(
    model: Path, wanted: Sequence[TextExample] | None, limits: InspectionLimits
) -> tuple[tuple[TextExample, ...], MeasuredOn]:
    """Open a language model, and return the examples with its answers.

    model: A file that the server would open.
    wanted: The examples, which may have answers; default None: one prompt.
    limits: Limits for opening the model.

    Raises Rejected if it cannot be served, or an answer differs from the given one.
    """
    with TemporaryDirectory(prefix="cohort-") as cache:
        inspector = Inspector(limits, Path(cache), lambda _: None)
        opener = VersionOpener(None, inspector=inspector, private=False)
        engines = GenerativeEngines(wake=lambda queue: None, opener=opener)
        config = ModelConfig(generation=GenerationPolicy(max_sequences=2))
        token = CancellationToken()
        try:
            opened = engines.open(Source(model, "", config), token)
            try:
                answers = opened.answers(token)
                if wanted is None:
                    wanted = [_generated(chats=opened.text.chats)]
                provider = opened.describe().placement.active
                texts = [
                    _answered(answers, f"example {number}", one, provider)
                    for number, one in enumerate(wanted, 1)
                ]
                return tuple(texts), measured_on(provider)
            finally:
                opened.close()
        except LoadFailed as error:
            raise Rejected(f"{model.parent.name} cannot be served: {error}") from error
        finally:
            inspector.rest()
            inspector.close()


def _generated(*, chats: bool) -> TextExample:
    if chats:
        return TextExample(messages=({"role": "user", "content": GENERATED},))
    return TextExample(GENERATED)


def _answered(
    answers: GreedyAnswers, called: str, example: TextExample, provider: str
) -> TextExample:
    """Return an example with the model's answer, which is the given one, if there is one."""
    if example.answer is None and example.tokens is None:
        example = replace(example, max_tokens=example.max_tokens or RECORDED_TOKENS)
    check_examples(answers, [(called, example)], provider)
    got = answers.answer(example)
    return replace(example, answer=got.text, tokens=tuple(got.tokens))
