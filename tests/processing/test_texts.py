"""Text by config: what the model gets, what it answers, and what is refused at load and later."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import structlog
from onnx import TensorProto
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from cohort import Runtime
from cohort.errors import InvalidInput, NotReady
from cohort.processing.patterns import is_explosive
from cohort.processing.tokenizing import MAX_CHARACTERS, TextTokenizer, open_tokenizer
from tests import text_models

CONFIG = "inputs: {text: {tokenizer: tokenizer.json, max_length: 8}}\n"
TEXTS = ["good", "the very very bad films", "", "漢字 🙂", "very " * 20]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of the model "mood"."""
    yield tmp_path / "models/mood"
    structlog.reset_defaults()


def texts(*values: Any) -> dict[str, Any]:
    array = np.array(values, np.object_)
    return {"text": array}


async def ask(folder: Path, *requests: dict[str, Any]) -> list[Any]:
    """Return the logits of each request, or its error; the server's own where it is not ready."""
    state = folder.parent.parent
    async with Runtime(models=folder.parent, state=state / "s", cache=state / "c") as runtime:
        answers = await asyncio.gather(
            *(runtime.infer("mood", one) for one in requests), return_exceptions=True
        )
    return [one if isinstance(one, BaseException) else one["logits"] for one in answers]


def expected(path: Path, values: list[str], *, most: int = 8) -> Any:
    """Return the model's outputs for ids without any padding, text by text."""
    tokenizer = text_models.wordpiece()
    tokenizer.enable_truncation(most)
    session = onnxruntime.InferenceSession(str(path))
    rows = []
    for one in tokenizer.encode_batch(values):
        feeds = {"input_ids": one.ids, "attention_mask": one.attention_mask}
        wanted = {i.name: np.array([feeds[i.name]], np.int64) for i in session.get_inputs()}
        rows.append(session.run(None, wanted)[0][0])
    return np.array(rows)


async def test_rows_of_one_request_are_answered_as_alone(folder: Path) -> None:
    """Padding has a mask; a long text is cut; an empty one has the ids that stand for no word."""
    path = text_models.save(folder, CONFIG)
    together, *alone = await ask(folder, texts(*TEXTS), *map(texts, TEXTS))
    np.testing.assert_allclose(together, expected(path, TEXTS), rtol=1e-5)
    np.testing.assert_allclose(np.concatenate(alone), together, rtol=1e-5)


async def test_without_a_mask_texts_of_one_request_have_as_many_ids(folder: Path) -> None:
    """Any other request is refused, with both numbers, instead of being answered wrongly."""
    path = text_models.save(folder, CONFIG, text_models.classifier(masked=False))
    even, uneven = await ask(folder, texts("good", "bad"), texts("good", "very bad"))
    np.testing.assert_allclose(even, expected(path, ["good", "bad"]), rtol=1e-5)
    assert isinstance(uneven, InvalidInput)
    assert "rows 0 and 1 have 3 and 4 ids" in str(uneven)


async def test_a_mask_that_the_model_does_not_heed_is_found_out(folder: Path) -> None:
    """Padding is tried at load: having a mask input proves nothing."""
    model = text_models.classifier()
    next(node for node in model.graph.node if node.op_type == "Mul").op_type = "Add"
    text_models.save(folder, CONFIG, model)
    (uneven,) = await ask(folder, texts("good", "very bad"))
    assert "padding changes this model's answers" in str(uneven)


async def test_a_model_of_one_length_gets_that(folder: Path) -> None:
    """Padded to its end; a longer max_length is refused at load, with both numbers."""
    model = text_models.classifier(length=6, datatype=TensorProto.INT32)
    text_models.save(folder, CONFIG.replace(", max_length: 8", ""), model)
    (answer,) = await ask(folder, texts("good", "the very very bad films"))
    plain = text_models.save(folder.parent.parent / "plain", "")
    np.testing.assert_allclose(
        answer, expected(plain, ["good", "the very very bad films"], most=6), rtol=1e-5
    )
    (folder / "config.yaml").write_text(CONFIG)
    (refused,) = await ask(folder, texts("good"))
    assert isinstance(refused, NotReady)
    assert "mood/config.yaml: inputs.text: max_length is 8, but the model expects 6" in str(refused)


async def test_pairs_have_types(folder: Path) -> None:
    """Each row is two texts; tokens after the first [SEP] are of the other type."""
    config = "inputs: {text: {tokenizer: tokenizer.json, pairs: true}}\n"
    text_models.save(folder, config, text_models.classifier(types=True))
    both, wrong = await ask(
        folder, texts(["good", "bad film"], ["the", "a"]), texts("good", "bad film")
    )
    session = onnxruntime.InferenceSession(str(folder / "1/model.onnx"))
    one = text_models.wordpiece().encode("good", "bad film")
    feeds = {"input_ids": one.ids, "attention_mask": one.attention_mask}
    feeds["token_type_ids"] = one.type_ids
    (logits,) = session.run(None, {name: np.array([ids], np.int64) for name, ids in feeds.items()})
    np.testing.assert_allclose(both[:1], logits, rtol=1e-5)
    assert "must have shape [N, 2]" in str(wrong)


RECORDED: Any = json.loads(Path(__file__).with_name("recorded_ids.json").read_text("utf-8"))
"""What transformers makes of some texts: tests/converters/sources/huggingface_texts.py."""


@pytest.mark.parametrize("kind", RECORDED["kinds"])
def test_ids_are_those_that_transformers_makes(tmp_path: Path, kind: str) -> None:
    """WordPiece, BPE and Unigram give the recorded ids; the converters' tests try 2,000."""
    recorded = RECORDED["kinds"][kind]
    (tmp_path / "tokenizer.json").write_text(json.dumps(recorded["tokenizer"]))
    opened = TextTokenizer(open_tokenizer(tmp_path / "tokenizer.json"), None)
    made = opened.encode(RECORDED["texts"], lambda: None)
    assert [one.ids for one in made] == recorded["ids"]


@pytest.mark.parametrize("most", [5, 6, 7, 12, 40])
def test_pairs_are_cut_as_the_library_does(tmp_path: Path, most: int) -> None:
    """The longer one is cut first; two texts of 100 KB take no longer than alone."""
    text_models.wordpiece().save(str(tmp_path / "tokenizer.json"))
    opened = TextTokenizer(open_tokenizer(tmp_path / "tokenizer.json"), most, pairs=True)
    own = text_models.wordpiece()
    own.enable_truncation(most)
    made: list[tuple[str, str]] = [
        ("good " * one, "bad " * other)
        for one in (0, 1, 2, 3, 9, 30)
        for other in (0, 1, 2, 3, 9, 30)
    ]
    for found, wanted in zip(
        opened.encode(made, lambda: None), own.encode_batch(made), strict=True
    ):
        assert (found.ids, found.type_ids) == (wanted.ids, wanted.type_ids)
    (long,) = opened.encode([("good " * 20_000, "bad " * 25_000)], lambda: None)
    assert len(long.ids) == most


async def test_an_example_is_what_callers_send(folder: Path) -> None:
    """It is run at load, and appears where examples are shown."""
    text_models.save(folder, CONFIG + 'example: {text: ["very good", "bad"]}\n')
    state = folder.parent.parent
    async with Runtime(models=folder.parent, state=state / "s", cache=state / "c") as runtime:
        await runtime.infer("mood", texts("good"))
        engine = runtime._core.registry.catalog["mood"].default.engine  # type: ignore[union-attr]
        assert engine is not None
        assert engine.example is not None
        assert engine.example["text"].tolist() == ["very good", "bad"]
    (folder / "config.yaml").write_text(CONFIG + "example: {text: [[good, bad]]}\n")
    (refused,) = await ask(folder, texts("good"))
    assert "the example of config.yaml: input 'text' must have shape [N]" in str(refused)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("{tokenizer: other.json}", "other.json not found: put it into the version's folder"),
        ("{tokenizer: ../1/tokenizer.json}", "must be the name of a file in the version's folder"),
        ("{tokenizer: tokenizer.json, max_length: 2}", "max_length is 2, and the tokenizer adds 2"),
        ("{max_length: 2}", "max_length needs a tokenizer"),
    ],
)
async def test_what_does_not_fit_is_named(folder: Path, config: str, said: str) -> None:
    """The version is unavailable, and its reason begins with the file and the key."""
    text_models.save(folder, f"inputs: {{text: {config}}}\n")
    (refused,) = await ask(folder, texts("good"))
    assert "mood/config.yaml: inputs.text: " in str(refused)
    assert said in str(refused)


async def test_another_models_tokenizer_is_found_out(folder: Path) -> None:
    """It has more ids than the model's table has entries."""
    text_models.save(folder, CONFIG, text_models.classifier(words=10))
    (refused,) = await ask(folder, texts("good"))
    assert "tokenizer.json has 14 ids, but the model's table for input_ids has 10" in str(refused)


async def test_texts_that_are_too_long_or_no_text_are_refused(folder: Path) -> None:
    """They are refused before any work, with the row; others are answered."""
    path = text_models.save(folder, CONFIG)
    long = "good " * (MAX_CHARACTERS // 5 + 2)
    raw = np.array([b"good", b"\xff\xfe\xfd\xfc"], "V4")
    fine, too_long, not_text, hundred = await ask(
        folder, texts("good"), texts("bad", long), {"text": raw}, texts("bad " * 25_600)
    )
    np.testing.assert_allclose(fine, expected(path, ["good"]), rtol=1e-5)
    assert f"row 1 has {len(long):,} characters; the limit is 262,144" in str(too_long)
    assert "row 1 is not UTF-8" in str(not_text)
    np.testing.assert_allclose(hundred, expected(path, ["bad " * 8]), rtol=1e-5)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '{"model": {"type": "BPE"}}', "\x00\xff", "[" * 100_000]
)
async def test_a_file_that_is_no_tokenizer_is_named(folder: Path, text: str) -> None:
    """The version is unavailable for any wrong content, and names the file."""
    text_models.save(folder, CONFIG)
    (folder / "1/tokenizer.json").write_text(text)
    (refused,) = await ask(folder, texts("good"))
    assert "tokenizer.json is not a tokenizer.json that the library can read" in str(refused)


def _of(pattern: str | None = None, normalizer: Any = None, model: Any = None) -> Tokenizer:
    tokenizer = Tokenizer(model or models.BPE({"a": 0, "b": 1, " ": 2}, []))
    if pattern is not None:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return tokenizer


@pytest.mark.parametrize(
    ("tokenizer", "said"),
    [
        (_of("(a+)+$"), "repeats a group"),
        (_of(normalizer=normalizers.Replace("a", "a" * 1000)), "writes 1,000 characters for one"),
        (_of(normalizer=normalizers.Prepend("a" * 10_000)), "writes 10,000 characters for one"),
        (
            _of(normalizer=normalizers.Sequence([normalizers.Replace("a", "aaaaaaaa")] * 4)),
            "64 characters for one",
        ),
    ],
)
async def test_a_tokenizer_that_explodes_is_refused(
    folder: Path, tokenizer: Tokenizer, said: str
) -> None:
    """The load fails on time or memory, before any caller meets it."""
    text_models.save(folder, CONFIG, tokenizer=tokenizer)
    (refused,) = await ask(folder, texts("good"))
    assert said in str(refused)


def test_a_slow_tokenizer_takes_shorter_texts(tmp_path: Path) -> None:
    """The limit is the number of characters that take a second."""
    vocabulary = {"[UNK]": 0, "a": 1, "##a": 2}
    slow = _of(
        model=models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=10**9)
    )
    slow.save(str(tmp_path / "tokenizer.json"))
    opened = TextTokenizer(open_tokenizer(tmp_path / "tokenizer.json"), 8)
    assert opened.most_characters < MAX_CHARACTERS / 8
    opened.encode(["a" * opened.most_characters], lambda: None)


@pytest.mark.parametrize(
    ("pattern", "explosive"),
    [
        (r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|\s*[\r\n]+|\s+(?!\S)|\s+", False),
        (r"[^\r\n\p{L}]?[\p{Lu}\p{M}]*[\p{Ll}]+(?i:'s|'t|'re)?| ?[^\s\p{L}]+[\r\n/]*", False),
        (r" ?[^(\s|[.,!?…。、])]+", False),
        (r"\d{1,3}(?=(?:\d{3})*\b)", False),
        (r"\(+\)+", False),
        (r"(a|aa)+c", True),
        (r"(?:a*)*", True),
        (r"((a+)b)*", True),
        (r"(a+)?+", True),
        (r"(x+y){2,}", True),
    ],
)
def test_patterns_that_explode_are_told_from_those_of_known_tokenizers(
    pattern: str, explosive: bool
) -> None:
    """They have a repeated group that contains repetitions or alternatives."""
    assert is_explosive(pattern) == explosive
