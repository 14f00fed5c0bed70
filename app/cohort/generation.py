"""Requests to language models, and the pieces of their answers: plain values for all layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

from cohort.errors import CohortError
from cohort.tensors import Array

Finish = Literal["", "stop", "length"]
"""Why a choice ended: "stop" at an end token or a stop string, "length" at its limit; "" before."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """The way the next token is chosen from the model's logits.

    temperature: Divides the logits; 0 always takes the most likely token.
    top_k: Only this many of the most likely tokens are drawn; 0: all.
    top_p: Only the most likely tokens are drawn whose probabilities sum to this; 1: all.
    min_p: Only tokens at least this likely, relative to the most likely one, are drawn; 0: all.
    repetition_penalty: Divides positive logits of tokens that occurred in the prompt or the answer,
        and multiplies negative ones; 1: no effect.
    presence_penalty: Is subtracted from the logits of tokens that occurred in the answer.
    frequency_penalty: Is subtracted from them once for each occurrence.
    logit_bias: Is added to the logits, by token id.
    seed: Makes the draws reproducible, whatever else runs; None: they differ each time.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """A prompt of messages, which the model's chat template turns into text.

    messages: Objects with `role`, `content` and other keys that the template may read, in order.
    tools: Descriptions of tools that the model may call, as in OpenAI's API; default: empty.
    options: Other variables of the template; default: empty.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Guide:
    """A form that the answer must have.

    kind: "json" for any JSON object, or the kind of `grammar`.
    grammar: The JSON schema as JSON text, or the regular expression; default "".
    """

    kind: Literal["json", "json_schema", "regex"]
    grammar: str = ""


Prompt = str | tuple[int, ...] | Conversation
"""A text, the ids of its tokens, or a conversation."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request for the continuation of a prompt.

    prompt: The prompt.
    max_tokens: The maximum of new tokens of a choice; None: as many as the model's context holds.
    sampling: The choice of tokens; fields that the caller left out have the model's defaults.
    stop: Texts that end a choice; the answer does not contain them. Default: empty.
    choices: The number of answers; default 1.
    logprobs: The number of most likely tokens to report with each token; None: no logprobs.
    guide: The form of the answer; default None: any text.
    ignore_end: True to continue after the model's end token, for measurements; default False.
    other_prompts: Further prompts with the same options; default: empty. Their choices follow those
        of `prompt`. Engines get each prompt in a separate request.
    """

    prompt: Prompt
    max_tokens: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    choices: int = 1
    logprobs: int | None = None
    guide: Guide | None = None
    ignore_end: bool = False
    other_prompts: tuple[Prompt, ...] = ()


class TextInputs(dict[str, Array]):
    """The prompts as tensors, for a copy of a request, with the request itself.

    requests: The requests, one for each prompt.
    """

    def __init__(self, arrays: Mapping[str, Array], requests: Sequence[GenerationRequest]) -> None:
        super().__init__(arrays)
        self.requests = requests


class TokenLogprob(NamedTuple):
    """A token, and the natural logarithm of its probability.

    token: Its id.
    text: Its text, in which bytes of incomplete characters are replaced.
    raw: Its bytes.
    logprob: Before temperature and the other options of sampling.
    top: The most likely tokens at its position, the most likely first; they have an empty `top`.
    """

    token: int
    text: str
    raw: bytes
    logprob: float
    top: Sequence[TokenLogprob] = ()


class Piece(NamedTuple):
    """The new part of one choice.

    choice: The number of the choice, from 0.
    text: The new text; it may be empty while a character or a stop string is incomplete.
    tokens: The new tokens' ids.
    logprobs: The same tokens with logprobs, if the request asked for them; else empty.
    finish: Why the choice ended with this piece; "" if it continues.
    """

    choice: int
    text: str
    tokens: tuple[int, ...] = ()
    logprobs: Sequence[TokenLogprob] = ()
    finish: Finish = ""


class ToolCall(NamedTuple):
    """A call of a tool, which the model wrote into its answer.

    name: The tool's name; it may be one that the request does not have.
    arguments: Its arguments, a JSON object as text.
    """

    name: str
    arguments: str


class ToolReader(Protocol):
    """Finds calls of tools in the text of one choice, by the markers of the model."""

    def add(self, text: str) -> Sequence[str | ToolCall]:
        """Return the texts and the calls that are complete, in order.

        Text that may be part of a call is held back. A malformed call is text.
        """

    def rest(self) -> Sequence[str | ToolCall]:
        """Return what was held back, at the end of the answer."""


class Usage(NamedTuple):
    """The tokens of a request.

    prompt: Those of its prompt.
    answer: The new tokens of all choices.
    cached: Those of the prompt that were computed before, for another request.
    """

    prompt: int
    answer: int
    cached: int = 0


class PreparedGeneration(Protocol):
    """A request whose prompt was tokenized, and whose limits were checked.

    request: The request.
    text: The whole prompt as text.
    prompt: The ids of the prompt's tokens.
    max_tokens: The maximum of new tokens of a choice.
    """

    @property
    def request(self) -> GenerationRequest: ...

    @property
    def text(self) -> str: ...

    @property
    def prompt(self) -> Sequence[int]: ...

    @property
    def max_tokens(self) -> int: ...


class GenerationReply(Protocol):
    """Receives the answer in pieces, on the event loop."""

    def pieces(self, pieces: Sequence[Piece]) -> None:
        """Receive new pieces, at most one for each choice; often several in one call."""

    def ended(self, usage: Usage, error: CohortError | None) -> None:
        """Receive the end: an error, or None after each choice has its last piece. Called once."""
