"""Answers with a form, chosen from random logits, and hostile grammars."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort.errors import InvalidInput
from cohort.generation import Guide, Sampling
from cohort.generative.answer_text import AnswerText
from cohort.generative.guidance import compile_guide
from cohort.generative.sampling import Chooser, Chosen, choose
from cohort.generative.vocabulary import Vocabulary
from tests.generative import tokenizers_of_models

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@cache
def vocabulary(kind: str = "byte level") -> Vocabulary:
    tokenizer = tokenizers_of_models.ALL[kind]()
    end = tokenizer.token_to_id("<|end|>" if kind == "byte level" else "</s>")
    assert end is not None
    return Vocabulary(tokenizer, [end])


def write(guide: Guide, seed: int, kind: str = "byte level", count: int = 400) -> str | None:
    """Return an answer from random logits; None if it does not end."""
    state = compile_guide(guide, vocabulary(kind)).start()
    chooser = Chooser(Sampling(seed=seed), (), guide=state)
    random = np.random.default_rng(seed)
    text = AnswerText(vocabulary(kind))
    written = ""
    for _ in range(count):
        logits = random.standard_normal((1, vocabulary(kind).size + 5)).astype(np.float32)
        (chosen,) = choose(logits, [chooser])
        assert isinstance(chosen, Chosen), chosen
        if chosen.token in vocabulary(kind).end_tokens:
            return written + text.rest()
        written += text.add(chosen.token)
    return None


@settings(max_examples=25)
@given(st.integers(0, 1 << 30), st.sampled_from(["byte level", "sentence piece"]))
def test_answers_are_instances_of_the_schema(seed: int, kind: str) -> None:
    """Random answers parse, and have all that the schema requires."""
    answer = write(Guide("json_schema", json.dumps(PERSON)), seed, kind)
    assert answer is not None
    person: Any = json.loads(answer)
    assert list(person) == ["name", "age", "tags"]
    assert len(person["name"]) <= 5
    assert 0 <= person["age"] <= 120
    assert set(person["tags"]) <= {"a", "b"}
    assert not re.search(r"[ \t]{21}|\n\s*\n", answer)


@settings(max_examples=25)
@given(st.integers(0, 1 << 30))
def test_answers_match_the_expression(seed: int) -> None:
    """The whole answer matches, and ends."""
    answer = write(Guide("regex", r"(yes|no), [a-z]{1,5}é[0-9]{3}"), seed)
    assert answer is not None
    assert re.fullmatch(r"(yes|no), [a-z]{1,5}é[0-9]{3}", answer)


def test_any_object() -> None:
    """Answers are JSON objects; white space has an end."""
    state = compile_guide(Guide("json"), vocabulary()).start()
    for token in vocabulary().encode('{"a": [1, {"b": null}],\n    "c": "é"', rendered=True):
        assert state.allowed()[token]
        state.accept(token)
    allowed = state.allowed()
    assert allowed[vocabulary().encode("}", rendered=True)[0]]
    assert not allowed[vocabulary().encode("]", rendered=True)[0]]
    space = vocabulary().encode("\t", rendered=True)[0]
    count = 0
    while state.allowed()[space]:
        state.accept(space)
        count += 1
    assert 0 < count <= 20
    state.accept(vocabulary().encode("}", rendered=True)[0])
    assert state.ended or state.allowed()[list(vocabulary().end_tokens)].all()


def test_choices_do_not_share_a_state() -> None:
    """Each begins at the beginning."""
    guide = compile_guide(Guide("regex", "ab"), vocabulary())
    first, second = guide.start(), guide.start()
    a, b = vocabulary().encode("ab", rendered=True)
    first.accept(a)
    assert first.allowed()[b]
    assert second.allowed()[a]
    assert not second.allowed()[b]


def nested(depth: int) -> str:
    return '{"type": "object", "properties": {"a": ' * depth + "{}" + "}}" * depth


def joined_patterns(count: int) -> str:
    patterns = [f"(a|b)*a(a|b){{{length}}}" for length in range(5, 5 + count)]
    return json.dumps({"allOf": [{"type": "string", "pattern": one} for one in patterns]})


@pytest.mark.parametrize(
    "guide",
    [
        Guide("json_schema", ""),
        Guide("json_schema", "[]"),
        Guide("json_schema", "{"),
        Guide("json_schema", "[" * 100_000),
        Guide("json_schema", nested(500)),
        Guide("json_schema", '{"type": "nothing"}'),
        Guide("json_schema", '{"$ref": "#"}'),
        Guide("json_schema", '{"$ref": "#/missing"}'),
        Guide("json_schema", '{"$ref": "http://127.0.0.1/schema.json"}'),
        Guide("json_schema", '{"$ref": "file:///etc/passwd"}'),
        Guide("json_schema", '{"type": "integer", "multipleOf": 987654321}'),
        Guide("json_schema", '{"type": "integer", "multipleOf": 999983}'),
        Guide("json_schema", '{"type": "number", "multipleOf": 41943.04}'),
        Guide("json_schema", '{"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]}'),
        Guide("json_schema", joined_patterns(20)),
        Guide("json_schema", '{"not": {"type": "string"}}'),
        Guide("json_schema", json.dumps({"properties": {f"k{i}": {} for i in range(3000)}})),
        Guide("json_schema", json.dumps({"type": "string", "pattern": "(a|b"})),
        Guide("json_schema", json.dumps({"enum": ["a" * 200_000]})),
        Guide("regex", "(a"),
        Guide("regex", "(?=a)b"),
        Guide("regex", "[]"),
        Guide("regex", "(" * 5000 + ")" * 5000),
        Guide("regex", "a" * 200_000),
    ],
    ids=lambda guide: f"{guide.kind} {guide.grammar[:30]}",
)
def test_wrong_and_hostile_grammars_are_rejected(guide: Guide) -> None:
    """Before the first token, with the field's name."""
    with pytest.raises(InvalidInput) as caught:
        compile_guide(guide, vocabulary())
    assert caught.value.parameter == "response_format"
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 500


@pytest.mark.parametrize(
    "guide",
    [
        Guide("regex", "((a{1,100}){1,100}){1,100}"),
        Guide("regex", "a{1000000000}"),
        Guide("regex", ".*" * 200 + "x"),
        Guide("regex", "(a|aa|aaa|aaaa){200}b(.*c){30}"),
        Guide("regex", "([a-m].{0,40}[n-z].{0,40}){20}"),
        Guide("regex", "(.*[ab]){300}"),
        Guide("json_schema", '{"type": "string", "pattern": "(.*a){50}b{1000}"}'),
        Guide("json_schema", '{"type": "array", "minItems": 100000, "items": {}}'),
    ],
    ids=lambda guide: f"{guide.kind} {guide.grammar[:30]}",
)
def test_complex_grammars_end_with_an_error_or_continue(guide: Guide) -> None:
    """A row whose grammar takes too many steps ends with an error; the library does not hang."""
    try:
        state = compile_guide(guide, vocabulary()).start()
    except InvalidInput as error:
        assert "cannot be used" in error.message  # noqa: PT017 - either is right
        return
    choosers = [Chooser(Sampling(seed=1), (), guide=state), Chooser(Sampling(temperature=0), ())]
    logits = np.zeros((2, vocabulary().size), np.float32)
    for _ in range(40):
        guided, other = choose(logits, choosers)
        assert other == Chosen(0)
        if isinstance(guided, InvalidInput):
            assert guided.parameter == "response_format"
            break


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"price": {"multipleOf": 0.01}, "count": {"multipleOf": 1000}}},
        {"properties": {"a": {"multipleOf": 7.5}, "b": {"multipleOf": 10_000}}},
        {"properties": {f"k{i}": {"type": "string", "pattern": "^[a-z]+$"} for i in range(20)}},
        {"allOf": [{"type": "string", "pattern": "^a"}, {"pattern": "b$"}]},
    ],
)
def test_schemas_of_usual_divisors_and_patterns_are_accepted(schema: dict[str, Any]) -> None:
    """The limits of schemas leave them alone."""
    compile_guide(Guide("json_schema", json.dumps(schema)), vocabulary())
