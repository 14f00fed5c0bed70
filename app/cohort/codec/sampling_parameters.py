"""The sampling parameters of a request to a language model, for all APIs.

Names are OpenAI's. Some names of Triton's backends are accepted as well: `stop_words`,
`random_seed`, `max_new_tokens`, `ignore_eos`. A parameter that is null counts as absent. Some
clients send only strings, so a number may be a decimal string, and a boolean, a list or an object
may be JSON text.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import islice
from math import isfinite
from typing import Any, NamedTuple

import orjson

from cohort.codec.json_tensors import shown
from cohort.codec.long_json import LISTS
from cohort.errors import InvalidInput, did_you_mean, quoted, shortened
from cohort.generation import GenerationRequest, Prompt, Sampling

PACKED = "sampling_parameters"
"""A parameter that holds others, as JSON text or an object, for Triton's vLLM backend."""

MAX_STOPS = 16
"""Maximum of stop strings in a request."""

MAX_STOP_CHARACTERS = 4096
"""Maximum characters of all stop strings of a request."""

MAX_BIASES = 1024
"""Maximum of token ids in `logit_bias`."""

MAX_TOKENS = 2**31 - 1
"""Maximum of `max_tokens`; the model's context is the real limit."""

_MAX_DIGITS = 40
_MAX_JSON = 64 * 1024


class _Limits(NamedTuple):
    least: float
    most: float
    whole: bool = False
    open: bool = False  # True if `least` itself is not allowed

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        if self.open:
            return f"{kind} > {self.least:g} and <= {self.most:g}"
        if self.most >= MAX_TOKENS:
            return f"{kind} >= {self.least:g}"
        return f"{kind} from {self.least:g} to {self.most:g}"


_SAMPLING: Mapping[str, _Limits] = {
    "temperature": _Limits(0, 2),
    "top_k": _Limits(-1, MAX_TOKENS, whole=True),
    "top_p": _Limits(0, 1),
    "min_p": _Limits(0, 1),
    "repetition_penalty": _Limits(0, 10, open=True),
    "presence_penalty": _Limits(-2, 2),
    "frequency_penalty": _Limits(-2, 2),
}
_SEEDS = ("seed", "random_seed")
_SEED = _Limits(-(2**63), 2**64 - 1, whole=True)
_COUNTS = ("max_tokens", "max_new_tokens")
_COUNT = _Limits(1, MAX_TOKENS, whole=True)
_BIAS = _Limits(-100, 100)
_TOKEN = _Limits(0, MAX_TOKENS, whole=True)
_ONLY_ONE = ("n", "best_of", "beam_width")

_FIXED: Mapping[str, Collection[object]] = {
    "min_length": (0, 1),
    "min_tokens": (0,),
    "skip_special_tokens": (True,),
    **dict.fromkeys(
        (
            "include_stop_str_in_output",
            "return_context_logits",
            "return_cumulative_logprob",
            "return_finish_reason",
            "return_generation_logits",
            "return_log_probs",
            "return_logprobs",
            "return_num_input_tokens",
            "return_num_output_tokens",
            "use_beam_search",
        ),
        (False,),
    ),
}
"""Parameters of Triton's backends, with the values that change no answer."""

_NO_EFFECT = frozenset({"early_stopping", "len_penalty", "length_penalty", "logprobs", "pad_id"})
"""Parameters of Triton's backends that only affect beams, padding or `return_logprobs`."""

PARAMETERS = frozenset(
    {
        *(*_SAMPLING, *_SEEDS, *_COUNTS, *_ONLY_ONE, PACKED),
        *("stop", "stop_words", "bad_words", "logit_bias", "ignore_eos"),
        *("stream", "exclude_input_in_output"),
        *(*_FIXED, *_NO_EFFECT),
    }
)
"""All names of parameters, which Triton's clients may send as tensors."""


def check_names(given: Mapping[str, object], others: Collection[str]) -> None:
    """Raise InvalidInput for a parameter that is neither in PARAMETERS nor in `others`."""
    known = PARAMETERS.union(others)
    for name, value in _unpacked(given).items():
        if value is not None and name not in known:
            hint = did_you_mean(name, known)
            raise InvalidInput(f"unknown parameter {quoted(name)}{hint}", shortened(name))


def read_generation(
    prompt: Prompt, given: Mapping[str, object], defaults: Sampling, *, logprobs: int | None = None
) -> GenerationRequest:
    """Return the request for one answer to `prompt`.

    given: The parameters by name.
    defaults: The model's values for parameters that are absent.
    logprobs: As in `GenerationRequest`; default None.

    Raises InvalidInput, whose `parameter` is the name of the wrong one.
    """
    given = _unpacked(given)
    for name in _ONLY_ONE:
        if given.get(name) is not None and _number(name, given[name], _COUNT) != 1:
            raise InvalidInput(f"{name} must be 1 here, got {shown(given[name])}", name)
    for name in _FIXED.keys() & given.keys():
        value = given[name]
        if value is not None and _plain(value) not in _FIXED[name]:
            values = " or ".join(map(shown, _FIXED[name]))
            raise InvalidInput(f"{name} must be {values} here, got {shown(value)}", name)
    if given.get("bad_words") and any(_texts("bad_words", given["bad_words"])):
        raise InvalidInput("bad_words must be empty: use logit_bias instead", "bad_words")
    return GenerationRequest(
        prompt,
        read_max_tokens(given),
        read_sampling(given, defaults),
        read_stop(given),
        logprobs=logprobs,
        ignore_end=read_flag("ignore_eos", given.get("ignore_eos")),
    )


def read_sampling(given: Mapping[str, object], defaults: Sampling) -> Sampling:
    """Return the sampling that `given` asks for; `defaults` have the values of absent parameters.

    A top_k of -1 means all tokens, as 0 does. Raises InvalidInput.
    """
    changes: dict[str, Any] = {
        name: _number(name, value, limits)
        for name, limits in _SAMPLING.items()
        if (value := given.get(name)) is not None
    }
    if changes.get("top_k") == -1:
        changes["top_k"] = 0
    name, seed = _first(given, _SEEDS)
    if seed is not None:
        changes["seed"] = _number(name, seed, _SEED)
    if given.get("logit_bias") is not None:
        changes["logit_bias"] = _biases(given["logit_bias"])
    return replace(defaults, **changes) if changes else defaults


def read_max_tokens(given: Mapping[str, object], names: Iterable[str] = _COUNTS) -> int | None:
    """Return the maximum of new tokens, from the first of `names` that is present; or None.

    Raises InvalidInput.
    """
    name, value = _first(given, names)
    return None if value is None else int(_number(name, value, _COUNT))


def read_stop(given: Mapping[str, object]) -> tuple[str, ...]:
    """Return the stop strings: `stop`, or else Triton's `stop_words`, in which "" has no effect.

    Raises InvalidInput.
    """
    name, value = _first(given, ("stop", "stop_words"))
    if value is None:
        return ()
    stops = _texts(name, value)
    if name == "stop_words":
        stops = [stop for stop in stops if stop]
    elif not all(stops):
        raise InvalidInput(f"{name} must not contain an empty string", name)
    if (size := sum(map(len, stops))) > MAX_STOP_CHARACTERS:
        raise InvalidInput(
            f"{name} has {size} characters; the limit is {MAX_STOP_CHARACTERS}", name
        )
    return tuple(dict.fromkeys(stops))


def read_flag(name: str, value: object, *, default: bool = False) -> bool:
    """Return a boolean, or `default` if it is absent. Raises InvalidInput."""
    if value is None:
        return default
    flag = _plain(value)
    if not isinstance(flag, bool):
        raise InvalidInput(f"{name} must be true or false, got {shown(value)}", name)
    return flag


def _unpacked(given: Mapping[str, object]) -> Mapping[str, object]:
    """Return the parameters with the packed ones among them."""
    packed = given.get(PACKED)
    if isinstance(packed, str):
        packed = _parsed(packed, "{")
    if packed is None:
        return given
    if not isinstance(packed, dict):
        raise InvalidInput(f"{PACKED} must be a JSON object, got {shown(given[PACKED])}", PACKED)
    for name in packed:
        if given.get(name) not in (None, packed[name]):
            raise InvalidInput(
                f"{quoted(name)[1:-1]} has two values: in {PACKED} and next to it", name
            )
    return {**given, **packed}


def _first(given: Mapping[str, object], names: Iterable[str]) -> tuple[str, object]:
    for name in names:
        if (value := given.get(name)) is not None:
            return name, value
    return "", None


def _number(name: str, value: object, limits: _Limits) -> float:
    number: object = value
    if isinstance(value, str) and len(value) <= _MAX_DIGITS and value.isascii():
        try:
            number = int(value) if limits.whole else float(value)
        except ValueError:
            number = None
    if limits.whole and isinstance(number, float) and number.is_integer():
        number = int(number)
    kinds = int if limits.whole else (int, float)
    fits = isinstance(number, kinds) and not isinstance(number, bool)
    if not fits or not _within(number, limits):  # type: ignore[arg-type]
        raise InvalidInput(f"{name} must be {limits}, got {shown(value)}", name)
    return number if limits.whole else float(number)  # type: ignore[arg-type,return-value]


def _plain(value: object) -> object:
    """Return the number or boolean in a short string; for other values the value."""
    if isinstance(value, str) and len(value) <= _MAX_DIGITS:
        try:
            return orjson.loads(value.lower())
        except orjson.JSONDecodeError:
            return value
    return value


def _within(number: float, limits: _Limits) -> bool:
    if not (isinstance(number, int) or isfinite(number)):
        return False
    return limits.least <= number <= limits.most and not (limits.open and number == limits.least)


def _texts(name: str, value: object) -> list[str]:
    """Return the strings of a list, of its JSON text, or a string alone."""
    if isinstance(value, str):
        parsed = _parsed(value, "[")
        if not isinstance(parsed, list) or not all(isinstance(one, str) for one in parsed):
            return [value]
        value = parsed
    if isinstance(value, LISTS):
        texts = list(islice(value, MAX_STOPS + 1))
        if len(texts) > MAX_STOPS:
            raise InvalidInput(f"{name} has more strings than the limit of {MAX_STOPS}", name)
        for text in texts:
            if not isinstance(text, str):
                raise InvalidInput(f"{name} must have strings only, got {shown(text)}", name)
        return texts
    raise InvalidInput(f"{name} must be a string or a list of strings, got {shown(value)}", name)


def _biases(value: object) -> Mapping[int, float]:
    name = "logit_bias"
    given = _parsed(value, "{") if isinstance(value, str) else value
    if not isinstance(given, dict):
        raise InvalidInput(
            f"{name} must be an object of token ids and numbers, got {shown(value)}", name
        )
    if len(given) > MAX_BIASES:
        raise InvalidInput(f"{name} has {len(given)} token ids; the limit is {MAX_BIASES}", name)
    return {_token(name, token): _number(name, bias, _BIAS) for token, bias in given.items()}


def _token(name: str, key: str) -> int:
    try:
        return int(_number(name, key, _TOKEN))
    except InvalidInput:
        message = f"the keys of {name} must be token ids, got {shown(key)}"
        raise InvalidInput(message, name) from None


def _parsed(text: str, start: str) -> object:
    """Return the value of short JSON text that begins with `start`; for other text the text."""
    if not text.lstrip().startswith(start) or len(text) > _MAX_JSON:
        return text
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
