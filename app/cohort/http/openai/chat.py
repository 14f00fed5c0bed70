"""`/v1/chat/completions`: from the body to the answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from cohort.connections.memory import MemoryHold
from cohort.errors import InvalidInput, quoted
from cohort.generation import (
    Conversation,
    GenerationRequest,
    Guide,
    Piece,
    PreparedGeneration,
    ToolCall,
    ToolReader,
    Usage,
)
from cohort.http.event_stream import EventPart
from cohort.http.openai.answers import (
    EventWriter,
    chat_logprobs,
    new_head,
    new_id,
    whole_answer,
)
from cohort.http.openai.fields import UNSUPPORTED, Fields, parse_object, wrong_value
from cohort.http.openai.messages import TEXTS, read_messages
from cohort.http.openai.options import IGNORED, MAX_LOGPROBS, REFUSED, Options, read_options
from cohort.http.openai.tools import (
    FirstCall,
    ForcedCall,
    Tools,
    read_response_format,
    read_tools,
)
from cohort.serving import Lease

CHAT_REFUSED: Mapping[str, str] = {
    **REFUSED,
    **TEXTS,
    "add_generation_prompt": "an answer always follows the last message",
    "audio": "answers are text",
    "best_of": "use 'n'",
    "chat_template": "the model's own template is used",
    "continue_final_message": "use /v1/completions",
    "documents": "put them into a message",
    "echo": "use /v1/completions",
    "function_call": "use 'tool_choice'",
    "functions": "use 'tools'",
    "reasoning_effort": "use 'chat_template_kwargs' if the model's template has it",
    "suffix": "use /v1/completions",
    "verbosity": "ask for it in a message",
    "web_search_options": "use 'tools'",
}


def read_chat(body: bytes, hold: MemoryHold) -> ChatCall:
    """Read a body; `hold` counts the answer. Raises InvalidInput."""
    fields = Fields(parse_object(body))
    messages = read_messages(fields)
    options = read_options(fields)
    tools, guide = read_tools(fields), read_response_format(fields)
    if tools.offered and guide is not None:
        raise wrong_value("response_format", "cannot be combined with 'tools'")
    variables = fields.of_type("chat_template_kwargs", dict) or {}
    logprobs = _read_logprobs(fields)
    if (modalities := fields.get("modalities")) not in (None, ["text"]):
        raise wrong_value("modalities", f"must be ['text'], got {quoted(str(modalities))}")
    fields.check_rest(IGNORED, CHAT_REFUSED)
    conversation = Conversation(messages, tools.offered, variables)
    return ChatCall(options, conversation, tools, tools.guide or guide, logprobs, len(body), hold)


def _read_logprobs(fields: Fields) -> int | None:
    """Return the number of most likely tokens to report; None: no logprobs."""
    wanted, top = fields.flag("logprobs"), fields.integer("top_logprobs", 0, MAX_LOGPROBS)
    if top is not None and not wanted:
        raise wrong_value("top_logprobs", "needs 'logprobs': true")
    return (top or 0) if wanted else None


class ChatCall:
    """A request for a message. Implements `TextCall`.

    options: The options.
    conversation: The messages and the tools.
    tools: The tools, and the choice among them.
    guide: The form of the answer; None: any text.
    logprobs: The number of most likely tokens to report with each token; None: no logprobs.
    size: The bytes of the body.
    hold: The request's share of the memory; the answer is added to it.
    """

    version: str | None = None
    label: str | None = None

    def __init__(
        self,
        options: Options,
        conversation: Conversation,
        tools: Tools,
        guide: Guide | None,
        logprobs: int | None,
        size: int,
        hold: MemoryHold,
    ) -> None:
        self.size = size
        self.model, self.timeout = options.model, options.timeout
        self.parameters = options.parameters
        self.stream = options.stream
        self.names: Mapping[str, str] = {
            "prompt": "messages",
            "max_tokens": options.limit,
            "response_format": "tools" if tools.offered else "response_format",
        }
        self._options = options
        self._conversation = conversation
        self._tools = tools
        self._guide = guide
        self._logprobs = logprobs
        self._hold = hold
        self._head: dict[str, Any] = {}
        self._choices: list[_Choice] = []
        self._writer: EventWriter | None = None

    def request(self, lease: Lease) -> GenerationRequest:
        """Return the request, with the model's defaults. Raises InvalidInput."""
        text = lease.text
        if not text.chats:
            model = quoted(lease.model)
            message = f"model {model} has no chat template; use /v1/completions"
            raise InvalidInput(message, "messages", UNSUPPORTED)
        tools = self._tools
        if tools.offered and tools.guide is None and text.read_tools() is None:
            message = (
                f"the chat template of model {quoted(lease.model)} knows no tools; set "
                "'tool_choice' to 'required' or to a tool"
            )
            raise InvalidInput(message, "tools", UNSUPPORTED)
        request = self._options.request(text.sampling, self._conversation)
        return replace(request, guide=self._guide, logprobs=self._logprobs)

    def begin(self, lease: Lease, prepared: PreparedGeneration) -> None:
        """Prepare the answer; its first part comes with the first token."""
        del prepared
        options = self._options
        kind = "chat.completion.chunk" if options.stream else "chat.completion"
        self._head = new_head("chatcmpl-", kind, lease)
        self._choices = [_Choice(self._reader(lease)) for _ in range(options.choices)]
        if options.stream:
            self._writer = EventWriter(self._head, usage=options.usage)

    def _reader(self, lease: Lease) -> ToolReader | None:
        tools = self._tools
        if not tools.offered:
            return None
        if tools.guide is not None:
            return ForcedCall(tools.forced)
        reader = lease.text.read_tools()
        return reader if reader is None or tools.several else FirstCall(reader)

    def encode_pieces(self, lease: Lease, pieces: Sequence[Piece]) -> EventPart | None:
        """Return events, or keep the pieces for a whole answer."""
        if self._writer is not None:
            return self._writer.events(delta for piece in pieces for delta in self._deltas(piece))
        for piece in pieces:
            self._hold.add(self._choices[piece.choice].keep(piece))
        return None

    def _deltas(self, piece: Piece) -> Iterator[Mapping[str, Any]]:
        choice = self._choices[piece.choice]
        if not choice.begun:
            choice.begun = True
            yield _delta(piece.choice, {"role": "assistant", "content": "", "refusal": None})
        text, calls = choice.read(piece)
        if text or piece.logprobs:
            yield _delta(piece.choice, {"content": text}, _logprobs(piece))
        for call in calls:
            written = {"index": choice.calls, **_call_object(call)}
            choice.calls += 1
            yield _delta(piece.choice, {"tool_calls": [written]})
        if piece.finish:
            yield {**_delta(piece.choice, {}), "finish_reason": choice.finish_reason(piece.finish)}

    def encode_end(self, lease: Lease, usage: Usage) -> EventPart:
        """Return the last events, or the whole answer."""
        if self._writer is not None:
            return self._writer.last(usage)
        choices = [one.whole(number) for number, one in enumerate(self._choices)]
        return whole_answer(self._head, choices, usage, lease)


class _Choice:
    """One answer in progress.

    reader: Finds tool calls; None: the answer is text.
    begun: True if an event was sent.
    calls: The number of tool calls so far.
    """

    def __init__(self, reader: ToolReader | None) -> None:
        self.begun = False
        self.calls = 0
        self._reader = reader
        self._texts: list[str] = []
        self._written: list[Mapping[str, Any]] = []
        self._logprobs: list[orjson.Fragment] = []  # written at once: the whole may be long
        self._finish = ""

    def read(self, piece: Piece) -> tuple[str, list[ToolCall]]:
        """Return the new text and the new tool calls."""
        if self._reader is None:
            return piece.text, []
        parts = [*self._reader.add(piece.text)]
        if piece.finish:
            parts += self._reader.rest()
        text = "".join(part for part in parts if isinstance(part, str))
        return text, [part for part in parts if isinstance(part, ToolCall)]

    def finish_reason(self, finish: str) -> str:
        """Return the reason of the end, in OpenAI's words."""
        return "tool_calls" if self.calls and finish == "stop" else finish

    def keep(self, piece: Piece) -> int:
        """Keep a piece for the whole answer, and return its bytes, roughly."""
        text, calls = self.read(piece)
        size = len(text)
        self._texts.append(text)
        for call in calls:
            self._written.append(_call_object(call))
            size += len(call.arguments)
        self.calls += len(calls)
        if piece.logprobs:
            written = orjson.dumps(chat_logprobs(piece.logprobs))[1:-1]
            size += len(written)
            self._logprobs.append(orjson.Fragment(written))
        if piece.finish:
            self._finish = self.finish_reason(piece.finish)
        return size

    def whole(self, index: int) -> dict[str, Any]:
        """Return the choice."""
        text = "".join(self._texts)
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if self._written:
            message |= {"content": text or None, "tool_calls": self._written}
        logprobs = None
        if self._logprobs:
            logprobs = {"content": self._logprobs, "refusal": None}
        return {
            "index": index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": self._finish,
        }


def _call_object(call: ToolCall) -> dict[str, Any]:
    return {
        "id": new_id("call_"),
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _logprobs(piece: Piece) -> dict[str, Any] | None:
    if not piece.logprobs:
        return None
    return {"content": chat_logprobs(piece.logprobs), "refusal": None}


def _delta(index: int, delta: Mapping[str, Any], logprobs: object = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
