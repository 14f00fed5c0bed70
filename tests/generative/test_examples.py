"""Examples of a language model: a version whose answer differs does not load."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from cohort.cli import cli
from cohort.errors import LoadFailed
from cohort.generation import Conversation, GenerationRequest, Prompt, Sampling
from cohort.generative.factory import GenerativeEngines
from cohort.generative.opening import OpenedLanguageModel
from cohort.onnx_engine import VersionOpener
from cohort.registry import Registry, Source, State
from cohort.repository import (
    Example,
    GivenExample,
    Manifest,
    ModelConfig,
    TextExample,
    dump_manifest,
    scan,
)
from cohort.session import CancellationToken, WorkCancelled
from models.decoder import write_decoder
from tests.generative.serving import ONE_THREAD, Answer, serving

HELLO = ({"role": "user", "content": "Hello"},)
LONG = tuple(int(one) for one in np.random.default_rng(0).integers(4, 320, 150))


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny language model."""
    return write_decoder(tmp_path_factory.mktemp("decoder") / "m" / "1").parent


@pytest.fixture
def folder(decoder: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    shutil.copytree(decoder, tmp_path / "models/m/1")
    return tmp_path / "models/m/1"


async def served(folder: Path, prompt: Prompt, most: int | None = 12) -> Answer:
    """Return the answer that callers get at temperature 0."""
    async with serving(folder) as running:
        return await running.solo(GenerationRequest(prompt, most, Sampling(temperature=0.0)))


def load(
    folder: Path, *given: GivenExample, token: CancellationToken | None = None
) -> OpenedLanguageModel:
    """Open the version with these examples in its config."""
    engines = GenerativeEngines(wake=lambda queue: None, opener=VersionOpener(None))
    config = ModelConfig(session=ONE_THREAD, example=given)
    source = Source(folder / "genai_config.json", "", config, model="m")
    opened = engines.open(source, token or CancellationToken())
    opened.close()
    return opened


def publish(folder: Path, *texts: TextExample, examples: tuple[Example, ...] = ()) -> None:
    """Write a manifest without digests."""
    manifest = Manifest(1, texts=texts, examples=examples)
    (folder / "manifest.json").write_bytes(dump_manifest(manifest))


@pytest.mark.parametrize("prompt", ["Hello", LONG, Conversation(HELLO)])
async def test_an_answer_must_be_the_one_that_callers_get(folder: Path, prompt: Prompt) -> None:
    """The recorded answer loads; one with another last letter or token does not."""
    answer = await served(folder, prompt)
    text, tokens = answer.text[0], tuple(answer.tokens[0])
    asked: dict[str, Any] = {"messages": HELLO} if prompt == Conversation(HELLO) else {}
    asked = {**(asked or {"prompt": prompt}), "max_tokens": 12}
    publish(folder, TextExample(**asked, answer=text, tokens=tokens))
    load(folder)
    publish(folder, TextExample(**asked, answer=text), TextExample(**asked, answer=text + "!"))
    with pytest.raises(LoadFailed, match=r"^text 2 of its manifest.* expected '.*!', got '.*'$"):
        load(folder)
    publish(folder, TextExample(**asked, tokens=(*tokens[:-1], 3)))
    with pytest.raises(LoadFailed, match="expected token 3 at place 12, got token"):
        load(folder)


async def test_tensors_of_texts_are_compared_as_texts(folder: Path) -> None:
    """Such an example has no limit of tokens but the maximum."""
    answer = await served(folder, "Hello", None)
    inputs = {"text_input": np.array(["Hello"], object)}
    outputs = {"text_output": np.array([answer.text[0]], object)}
    publish(folder, examples=(Example(inputs, outputs),))
    load(folder)
    outputs["text_output"] = np.array(["Hello"], object)
    publish(folder, examples=(Example(inputs, outputs),))
    with pytest.raises(LoadFailed, match=r"example 1 of its manifest.json, 'Hello', has another"):
        load(folder)
    publish(folder, examples=(Example(inputs, {}),))
    with pytest.raises(LoadFailed, match="needs a 'text_output' for each 'text_input'"):
        load(folder)


async def test_a_config_has_examples_without_a_manifest(folder: Path) -> None:
    """An example without an answer only has to run; its prompt is shown to callers."""
    answer = await served(folder, "Hello")
    given = {"prompt": "Hello", "max_tokens": 12}
    assert load(folder, {**given, "answer": answer.text[0]})._example == "Hello"
    load(folder, {"text_input": ["one", "two"]}, {"messages": list(HELLO)})
    with pytest.raises(LoadFailed, match=r"example 2 of config.yaml, 'Hello', has another answer"):
        load(folder, given, {**given, "answer": "no"})


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("rows.npz", "must be a prompt"),
        ({"prompt": "a", "answr": "b"}, "unknown key 'answr'; did you mean 'answer'?"),
        ({"prompt": 3}, "prompt"),
        ({"answer": "b"}, "needs a prompt or messages"),
        ({"prompt": "a", "messages": list(HELLO)}, "needs a prompt or messages"),
        ({"prompt": "a", "max_tokens": 257}, "max_tokens: Input should be less than or equal"),
        ({"prompt": [1] * 300}, "maximum context length is 256 tokens"),
        ({"prompt": [320]}, "the prompt has the token 320; the model's tokens are from 0 to 319"),
        ({"text_input": ["a"] * 17}, "has 17 texts as examples; the limit is 16"),
    ],
)
def test_an_example_that_cannot_run_fails_the_load(
    folder: Path, given: GivenExample, sentence: str
) -> None:
    """The reason names the example and what is wrong with it."""
    with pytest.raises(LoadFailed) as caught:
        load(folder, given)
    assert "config.yaml" in str(caught.value)
    assert sentence in str(caught.value)


async def test_a_long_difference_is_shown_from_where_it_begins(folder: Path) -> None:
    """A few characters before it are shown, and what came instead."""
    answer = (await served(folder, "Hello", 40)).text[0]
    wrong = answer[:30] + "+" * 10_000_000
    publish(folder, TextExample("Hello", answer=wrong, max_tokens=40))
    with pytest.raises(LoadFailed) as caught:
        load(folder)
    assert "from character 11, got" in str(caught.value)
    assert repr(answer[10:32])[1:-1] in str(caught.value)  # the tokens after it
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "texts", [[{"prompt": "a"}] * 17, [{"prompt": "a", "tokens": [1] * 257}], [{"prompt": {}}]]
)
def test_a_manifest_has_few_short_texts(folder: Path, texts: list[Mapping[str, Any]]) -> None:
    """Each costs time at every load."""
    (folder / "manifest.json").write_text(json.dumps({"format": 1, "texts": texts}))
    with pytest.raises(LoadFailed, match=r"manifest.json: texts"):
        load(folder)


def test_a_load_that_is_cancelled_ends_between_two_tokens(folder: Path) -> None:
    """So the load's time limit bounds the examples, however slow the model is."""

    class Late(CancellationToken):
        def enter(self, stage: str) -> None:
            super().enter(stage)
            if stage == "in its examples":
                self.cancel("too late")

    with pytest.raises(WorkCancelled, match="too late"):
        load(folder, {"prompt": "Hello"}, token=Late())


async def test_a_version_with_another_answer_is_unavailable(folder: Path) -> None:
    """Its reason has the example, the expected answer and the one that came; so has `check`."""
    publish(folder, TextExample("Hello", answer="Certainly"))
    engines = GenerativeEngines(wake=lambda queue: None, opener=VersionOpener(None))
    registry = Registry([engines], observe=lambda event: None)
    registry.follow(scan(folder.parents[1], None, quiet=0, kinds=registry.kinds))
    await registry.loaded()
    entry = registry.catalog["m"].versions[1]
    registry.close()
    assert entry.state is State.UNAVAILABLE
    wanted = (
        "text 1 of its manifest, 'Hello', has another answer here, on cpu: expected 'Certainly'"
    )
    assert wanted in entry.reason
    checked = CliRunner().invoke(cli, ["check", str(folder.parents[1])])
    assert checked.exit_code == 1
    assert wanted in checked.output
