"""The sampling parameters that all APIs of language models accept."""

from __future__ import annotations

from typing import Any

import pytest

from cohort.codec.sampling_parameters import read_generation, read_sampling
from cohort.errors import InvalidInput
from cohort.generation import GenerationRequest, Sampling

DEFAULTS = Sampling(temperature=0.7, top_k=40)


def test_an_absent_parameter_has_the_default_of_the_model() -> None:
    """Null counts as absent; `check_names` finds unknown parameters."""
    request = read_generation("hi", {"temperature": None, "user": "u"}, DEFAULTS)
    assert request == GenerationRequest("hi", None, DEFAULTS)


def test_every_parameter_reaches_the_request() -> None:
    """A top_k of -1 means all tokens; whole numbers are accepted as floats."""
    given = {
        "max_tokens": 5.0,
        "temperature": 0,
        "top_k": -1,
        "top_p": 0.5,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "presence_penalty": -1,
        "frequency_penalty": 2,
        "seed": 7,
        "logit_bias": {"3": -100},
        "stop": "\n",
        "ignore_eos": True,
    }
    sampling = Sampling(0.0, 0, 0.5, 0.1, 1.2, -1.0, 2.0, {3: -100.0}, 7)
    expected = GenerationRequest("hi", 5, sampling, ("\n",), ignore_end=True)
    assert read_generation("hi", given, DEFAULTS) == expected


def test_clients_that_send_only_strings_are_understood() -> None:
    """Numbers may be decimal strings; booleans, lists and objects may be JSON text."""
    given = {
        "max_new_tokens": "5",
        "temperature": "0.5",
        "random_seed": "-7",
        "stop_words": '["a", "", "b"]',
        "logit_bias": '{"3": 1}',
        "bad_words": "",
        "ignore_eos": "true",
    }
    request = read_generation("hi", given, Sampling())
    assert request.ignore_end
    assert (request.max_tokens, request.stop) == (5, ("a", "b"))
    assert request.sampling == Sampling(0.5, logit_bias={3: 1.0}, seed=-7)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperature": 2.1}, "temperature must be a number from 0 to 2, got 2.1"),
        ({"temperature": "hot"}, "temperature must be .*, got the string 'hot'"),
        ({"temperature": True}, "temperature must be .*, got true"),
        ({"temperature": float("nan")}, "temperature must be .*, got nan"),
        ({"top_p": -0.1}, "top_p must be a number from 0 to 1"),
        ({"top_k": 1.5}, "top_k must be a whole number >= -1, got 1.5"),
        ({"min_p": [1]}, "min_p must be .*, got a list"),
        ({"repetition_penalty": 0}, "repetition_penalty must be a number > 0 and <= 10, got 0"),
        ({"max_tokens": 0}, "max_tokens must be a whole number >= 1, got 0"),
        ({"max_tokens": 2**31}, "max_tokens must be"),
        ({"seed": 2**64}, "seed must be"),
        ({"stop": ""}, "stop must not contain an empty string"),
        ({"stop": ["a", 1]}, "stop must have strings only, got 1"),
        ({"stop": ["a"] * 1000}, "stop has more strings than the limit of 16"),
        ({"stop": "a" * 10**6}, "stop has 1000000 characters; the limit is 4096"),
        ({"stop_words": 1}, "stop_words must be a string or a list of strings, got 1"),
        ({"logit_bias": [1]}, "logit_bias must be an object of token ids and numbers"),
        ({"logit_bias": {"a": 1}}, "the keys of logit_bias must be token ids, got the string 'a'"),
        ({"logit_bias": {"1": 101}}, "logit_bias must be a number from -100 to 100, got 101"),
        ({"logit_bias": dict.fromkeys(map(str, range(2000)), 1)}, "logit_bias has 2000 token ids"),
        ({"ignore_eos": "yes"}, "ignore_eos must be true or false"),
        ({"n": 2}, "n must be 1 here, got 2"),
        ({"beam_width": "4"}, "beam_width must be 1 here"),
        ({"use_beam_search": 1}, "use_beam_search must be false here, got 1"),
        ({"skip_special_tokens": "0"}, "skip_special_tokens must be true here"),
        ({"min_length": 1.5}, "min_length must be 0 or 1 here, got 1.5"),
        ({"min_tokens": [0]}, "min_tokens must be 0 here, got a list"),
        ({"bad_words": ["a"]}, "bad_words must be empty: use logit_bias instead"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(given: dict[str, Any], message: str) -> None:
    """The message names the parameter and its limits, and so does the error's `parameter`."""
    with pytest.raises(InvalidInput, match=f"^{message}") as caught:
        read_generation("hi", given, Sampling())
    assert caught.value.parameter == next(iter(given))


@pytest.mark.parametrize(
    "given",
    [
        {"use_beam_search": 0},
        {"use_beam_search": "False"},
        {"skip_special_tokens": 1},
        {"min_tokens": 0.0},
        {"min_tokens": "0"},
        {"min_length": 1.0},
    ],
)
def test_a_number_equal_to_a_fixed_value_is_accepted(given: dict[str, Any]) -> None:
    """Clients write a boolean as 0 or 1, and a whole number with a decimal point."""
    assert read_generation("hi", given, DEFAULTS) == read_generation("hi", {}, DEFAULTS)


def test_unchanged_sampling_is_the_default_itself() -> None:
    """A request without sampling parameters costs no copy."""
    assert read_sampling({"max_tokens": 3}, DEFAULTS) is DEFAULTS
