"""Language models before they are published: their files, and their answers to examples."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from cohort.errors import LoadFailed
from cohort.generative.examples import GreedyAnswers, answer_as_expected
from cohort.generative.factory import GenerativeEngines
from cohort.generative.version_folder import model_files
from cohort.inspection import InspectionLimits, Inspector
from cohort.onnx_engine import VersionOpener
from cohort.registry import Source
from cohort.repository import (
    GENAI_FILE,
    MAX_TEXTS,
    MODEL_FILE,
    GenerationPolicy,
    MeasuredOn,
    ModelConfig,
    TextExample,
    parse_text_example,
)
from cohort.session import CancellationToken, Digests
from cohort.system.kept_files import read_small, why_unreadable
from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.publishing.evidence import measured_on

RECORDED_TOKENS = 16
"""Maximum tokens of an answer whose example does not set `max_tokens`."""

MAX_TEXTS_BYTES = 1 << 20

MAX_SECONDS = ModelConfig().load_timeout_s / 2
"""Maximum time for all answers, which each load generates again."""


def copy_files(model: Path, folder: Path) -> dict[str, str]:
    """Copy the files of a model; return their digests by name, that of the model first.

    A plain decoder becomes model.onnx. Raises Misused if the folder has another main file.
    """
    main = model.name if model.name == GENAI_FILE else MODEL_FILE
    for other in (GENAI_FILE, main):
        if other != model.name and (model.parent / other).exists():
            raise Misused(f"{model.parent} has {other} next to {model.name}: move one of them away")
    names = {main if name == model.name else name: name for name in model_files(model)}
    for name, original in names.items():
        shutil.copyfile(model.parent / original, folder / name)
    digests = Digests()
    ordered = sorted(names, key=lambda name: name != main)
    return {name: digests.of(folder / name) for name in ordered}


def read_texts(path: Path) -> list[TextExample]:
    """Read examples from a JSON lines file. Raises Misused."""
    try:
        lines = read_small(path, MAX_TEXTS_BYTES).split("\n")
    except (OSError, ValueError) as error:
        raise Misused(f"{path} {why_unreadable(error)}") from error
    try:
        found = [parse_text_example(json.loads(line)) for line in lines if line.strip()]
    except (ValueError, TypeError, RecursionError, LoadFailed) as error:
        raise Misused(f'{path}: must have lines such as {{"prompt": "Hello"}}: {error}') from error
    if not 0 < len(found) <= MAX_TEXTS:
        raise Misused(f"{path} must have 1 to {MAX_TEXTS} examples, got {len(found)}")
    return found


def answer_texts(
    model: Path, wanted: Sequence[TextExample], limits: InspectionLimits
) -> tuple[tuple[TextExample, ...], MeasuredOn]:
    """Open a language model, and return the examples with its answers.

    model: A file that the server would open.
    wanted: The examples, which may have answers.
    limits: Limits for opening the model.

    Raises Rejected if it cannot be served, an answer differs from the given one, or the answers
    take longer than MAX_SECONDS.
    """
    with TemporaryDirectory(prefix="cohort-") as cache:
        inspector = Inspector(limits, Path(cache), lambda _: None)
        opener = VersionOpener(Path(cache), inspector=inspector, private=False)
        engines = GenerativeEngines(wake=lambda queue: None, opener=opener)
        config = ModelConfig(generation=GenerationPolicy(max_sequences=2))
        token = CancellationToken()
        try:
            opened = engines.open(Source(model, "", config), token)
            try:
                answers = opened.answers(token)
                provider = opened.describe().placement.active
                start, texts = monotonic(), list[TextExample]()
                for number, one in enumerate(wanted, 1):
                    texts.append(_answered(answers, f"example {number}", one, provider))
                    _check_time(number, monotonic() - start)
                return tuple(texts), measured_on(provider)
            finally:
                opened.close()
        except LoadFailed as error:
            raise Rejected(f"{model.parent.name} cannot be served: {error}") from error
        finally:
            inspector.rest()
            inspector.close()


def _check_time(count: int, seconds: float) -> None:
    if seconds > MAX_SECONDS:
        raise Rejected(
            f"{count} of the examples took {seconds:.0f} s; each load runs them, so the limit is "
            f"{MAX_SECONDS:.0f} s: give fewer or shorter examples"
        )


def _answered(
    answers: GreedyAnswers, called: str, example: TextExample, provider: str
) -> TextExample:
    """Return an example with the model's answer, which is the given one, if there is one."""
    if example.answer is None and example.tokens is None:
        example = replace(example, max_tokens=example.max_tokens or RECORDED_TOKENS)
    got = answer_as_expected(answers, (called, example), provider)
    return replace(example, answer=got.text, tokens=tuple(got.tokens))
