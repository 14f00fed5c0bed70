"""The options that chats and completions share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cohort.codec.sampling_parameters import read_sampling, read_stop
from cohort.generation import GenerationRequest, Prompt, Sampling
from cohort.http.openai.fields import Fields, wrong_type, wrong_value

MAX_CHOICES = 16
MAX_LOGPROBS = 20
MAX_TOKENS = 1 << 24
"""Limit of `max_tokens` before the model's own one is known."""
MAX_NAME = 512
MAX_TIMEOUT_MS = 86_400_000

NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "top_k",
    "seed",
)
"""Sampling options; their bounds are in `sampling_parameters`."""

IGNORED: Mapping[str, str] = {
    "user": "names the end user; a rollout may keep it on one variant",
    "metadata": "labels of stored answers; nothing is stored",
    "store": "nothing is stored",
    "service_tier": "there is one tier; keys have priorities",
    "safety_identifier": "names the end user",
    "prompt_cache_key": "prefixes are reused whatever it is",
    "prompt_cache_retention": "prefixes are reused whatever it is",
    "prompt_cache_options": "prefixes are reused whatever they are",
    "prediction": "may only make an answer faster",
}
"""Keys that change no answer, and why."""

REFUSED: Mapping[str, str] = {
    "allowed_token_ids": "use 'logit_bias'",
    "bad_words": "use 'logit_bias'",
    "extra_body": "put its keys into the body itself",
    "guided_choice": "use 'response_format'",
    "guided_grammar": "use 'response_format'",
    "guided_json": "use 'response_format'",
    "guided_regex": "use 'response_format'",
    "length_penalty": "there is no beam search",
    "min_tokens": "use 'logit_bias' against the end token",
    "prompt_logprobs": "only new tokens have logprobs",
    "stop_token_ids": "use 'stop'",
    "structured_outputs": "use 'response_format'",
    "truncate_prompt_tokens": "shorten the prompt",
    "use_beam_search": "there is no beam search",
}
"""Keys of other servers that would change the answer, and what to use instead."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a request.

    model: The model's name; None: the default one.
    timeout: The caller's limit in seconds; None: the model's.
    sampling: The sampling options that the request names.
    max_tokens: The maximum of new tokens; None: the default.
    limit: The name of the key that gave it.
    stop: The stop strings.
    choices: The number of answers to each prompt.
    stream: True if the answer is a stream of events.
    usage: True if a stream ends with the number of tokens.
    ignore_end: True to continue after the end token.
    user: The end user; "": not named.
    """

    model: str | None
    timeout: float | None
    sampling: Mapping[str, Any]
    max_tokens: int | None
    limit: str
    stop: tuple[str, ...]
    choices: int
    stream: bool
    usage: bool
    ignore_end: bool
    user: str

    @property
    def parameters(self) -> Mapping[str, object]:
        """The parameters that may be a rollout's sticky key."""
        return {"user": self.user} if self.user else {}

    def request(self, defaults: Sampling, prompt: Prompt) -> GenerationRequest:
        """Return a request for one prompt; `defaults` are the model's."""
        return GenerationRequest(
            prompt,
            self.max_tokens,
            read_sampling(self.sampling, defaults),
            self.stop,
            self.choices,
            ignore_end=self.ignore_end,
        )


def read_options(fields: Fields, default_max_tokens: int | None = None) -> Options:
    """Read the options. Raises InvalidInput."""
    model = fields.text("model", MAX_NAME)
    limit = "max_tokens"
    tokens = fields.integer(limit, 1, MAX_TOKENS)
    other = fields.integer("max_completion_tokens", 1, MAX_TOKENS)
    if other is not None:
        limit, tokens = "max_completion_tokens", other
    stream = fields.flag("stream")
    milliseconds = fields.number("timeout_ms", 1, MAX_TIMEOUT_MS)
    return Options(
        model,
        None if milliseconds is None else milliseconds / 1000,
        _read_sampling(fields),
        default_max_tokens if tokens is None else tokens,
        limit,
        _read_stop(fields),
        fields.integer("n", 1, MAX_CHOICES) or 1,
        stream,
        _asks_for_usage(fields, stream=stream),
        fields.flag("ignore_eos"),
        fields.text("user", MAX_NAME) or "",
    )


def _read_sampling(fields: Fields) -> Mapping[str, Any]:
    """Return the sampling options that the request names, after a check."""
    given: dict[str, Any] = {key: fields.of_number(key) for key in NUMBERS}
    given["logit_bias"] = fields.of_type("logit_bias", dict)
    if given["top_p"] == 0:
        raise wrong_value("top_p", "must be above 0")
    read_sampling(given, Sampling())
    return given


def _read_stop(fields: Fields) -> tuple[str, ...]:
    stop = fields.get("stop")
    if not isinstance(stop, str | list | None):
        raise wrong_type("stop", "a string or a list of strings", stop)
    return read_stop({"stop": [stop] if isinstance(stop, str) else stop})


def _asks_for_usage(fields: Fields, *, stream: bool) -> bool:
    options = fields.inside("stream_options")
    if options is None:
        return False
    if not stream:
        raise wrong_value("stream_options", "needs 'stream': true")
    usage = options.flag("include_usage")
    options.check_rest({"include_obfuscation": "pads events, to hide their sizes"}, {})
    return usage
