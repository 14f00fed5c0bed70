"""The text of answers, token by token, compared with the whole."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models

from cohort.errors import InvalidInput, LoadFailed, TooLarge
from cohort.generation import Conversation, GenerationRequest
from cohort.generative.answer_text import AnswerText, begin_answer, check_stop
from cohort.generative.vocabulary import Vocabulary, open_vocabulary
from tests.generative import tokenizers_of_models

KINDS = st.sampled_from(sorted(tokenizers_of_models.ALL))


@cache
def opened(kind: str) -> tuple[Tokenizer, Vocabulary]:
    tokenizer = tokenizers_of_models.ALL[kind]()
    return tokenizer, Vocabulary(tokenizer, ())


def id_of(tokenizer: Tokenizer, name: str) -> int:
    found = tokenizer.token_to_id(name)
    assert found is not None
    return found


def said(answer: AnswerText, tokens: list[int]) -> list[str]:
    return [*(answer.add(token) for token in tokens), answer.rest()]


@given(KINDS, st.text(max_size=30) | st.text(" helowrdtca,é\n漢🙂", max_size=30))
def test_texts_are_those_of_the_library(kind: str, text: str) -> None:
    """Token by token, an answer is what the library decodes of all of them."""
    tokenizer, vocabulary = opened(kind)
    tokens = tokenizer.encode(text).ids
    whole = tokenizer.decode(tokens)
    parts = said(AnswerText(vocabulary), tokens)
    assert "".join(parts) == whole
    assert vocabulary.text_of(tokens) == whole


@given(KINDS, st.lists(st.integers(0, 300), max_size=30))
def test_any_tokens_have_a_text(kind: str, tokens: list[int]) -> None:
    """Bytes that are not characters are replaced, and characters never come in halves."""
    tokenizer, vocabulary = opened(kind)
    tokens = [token % (vocabulary.size + 3) for token in tokens]
    parts = said(AnswerText(vocabulary), tokens)
    assert "".join(parts) == vocabulary.text_of(tokens)
    if kind != "sentence piece":  # the library replaces all bytes of a run with a wrong one
        assert "".join(parts) == tokenizer.decode(tokens)


@given(st.sampled_from(["byte level", "sentence piece"]), st.text(" éa漢", min_size=1, max_size=20))
def test_an_answer_continues_its_prompt(kind: str, text: str) -> None:
    """If an answer follows a text, prompt and answer are the whole text, with its spaces."""
    tokenizer, vocabulary = opened(kind)
    tokens = tokenizer.encode(text, add_special_tokens=False).ids
    for cut in range(1, len(tokens)):
        prompt = vocabulary.text_of(tokens[:cut])
        if "\ufffd" not in prompt:
            answer = AnswerText(vocabulary, follows=True)
            assert prompt + "".join(said(answer, tokens[cut:])) == tokenizer.decode(tokens)


def cut_at(text: str, stop: list[str]) -> str:
    """Return the text before the stop string that is complete first; of several, the longest."""
    ends = [(text.find(one) + len(one), -len(one)) for one in stop if one in text]
    return text if not ends else text[: sum(min(ends))]


@example("aabaac", ["aabaaa", "aac"])
@example("aaac", ["aac"])
@example("aé" * 3, ["éa", "aéa"])
@given(
    st.text("abé", max_size=30),
    st.lists(st.text("abé", min_size=1, max_size=5), max_size=4),
)
def test_stop_strings_end_the_text(text: str, stop: list[str]) -> None:
    """Across borders of tokens, the text before the stop string is sent, and nothing else."""
    _, vocabulary = opened("byte level")
    tokens = vocabulary.encode(text, rendered=True)
    answer = AnswerText(vocabulary, stop)
    wanted = cut_at(text, stop)
    sent = ""
    for count, token in enumerate(tokens, 1):
        sent += answer.add(token)
        assert wanted.startswith(sent)
        whole = vocabulary.text_of(tokens[:count]).rstrip("\ufffd")
        assert answer.stopped == (cut_at(whole, stop) != whole)
        if not answer.stopped:  # no more is held back than the start of a stop string
            assert not whole[len(sent) :] or any(one.startswith(whole[len(sent) :]) for one in stop)
    assert sent + answer.rest() == wanted


def test_special_tokens_are_not_text() -> None:
    """End tokens have no text, but those that begin calls of tools do if a request has tools."""
    tokenizer, vocabulary = opened("byte level")
    tokens = [id_of(tokenizer, one) for one in ("<think>", "h", "<|python_tag|>", "<|end|>")]
    assert "".join(said(AnswerText(vocabulary), tokens)) == "<think>h"
    chat = GenerationRequest(Conversation([], [{"type": "function"}]))
    assert "".join(said(begin_answer(vocabulary, chat, []), tokens)) == "<think>h<|python_tag|>"
    without = GenerationRequest(Conversation([]))
    assert "".join(said(begin_answer(vocabulary, without, []), tokens)) == "<think>h"


def test_an_answer_after_a_special_token_begins_a_text() -> None:
    """The leading space of its first word is left out; after a text, it stays."""
    tokenizer, vocabulary = opened("sentence piece")
    word = id_of(tokenizer, "▁the")
    request = GenerationRequest("")
    assert begin_answer(vocabulary, request, [1]).add(word) == "the"
    assert begin_answer(vocabulary, request, [1, word]).add(word) == " the"


def test_prompts_have_the_tokens_that_the_tokenizer_adds() -> None:
    """A rendered template writes all tokens itself, so that none is there twice."""
    tokenizer, vocabulary = opened("byte level")
    assert vocabulary.encode("hello") == tokenizer.encode("hello").ids
    begin = id_of(tokenizer, "<|begin|>")
    assert vocabulary.encode("<|begin|>hello", rendered=True).count(begin) == 1


def test_long_prompts_are_rejected() -> None:
    """Before the tokenizer reads them."""
    _, vocabulary = opened("words")
    with pytest.raises(TooLarge, match="characters; the limit is") as caught:
        vocabulary.encode("a" * (vocabulary.most_characters + 1))
    assert caught.value.parameter == "prompt"


@pytest.mark.parametrize("stop", [["a"] * 17, [""], ["a" * 1025]])
def test_stop_strings_have_limits(stop: list[str]) -> None:
    """Their number and lengths, before anything is done with them."""
    with pytest.raises(InvalidInput) as caught:
        check_stop(stop)
    assert caught.value.parameter == "stop"
    check_stop(["a" * 1024] * 16)


@pytest.mark.parametrize(
    ("decoder", "message"),
    [
        (decoders.BPEDecoder(), "BPEDecoder: not supported"),
        (decoders.Replace(Regex("(a+)+$"), ""), "may never finish"),
        (decoders.Replace("a", "b"), "changes plain text"),
        (decoders.Replace(" ", "c" * (1 << 18)), "more than 256 MiB"),
    ],
)
def test_unfit_decoders_are_not_opened(tmp_path: Path, decoder: Any, message: str) -> None:
    """Each token must have bytes that do not depend on its neighbours, quickly and not too many."""
    words = {f" {i}": i for i in range(1100)} | {"[UNK]": 1100}
    tokenizer = Tokenizer(models.WordLevel(words, "[UNK]"))
    tokenizer.decoder = decoder
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(LoadFailed, match=message):
        open_vocabulary(tmp_path, ())
