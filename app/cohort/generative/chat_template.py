"""Chat templates, which turn the messages of a conversation into a prompt."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import TemplateSyntaxError
from jinja2.exceptions import SecurityError, TemplateError

from cohort.errors import InvalidInput, LoadFailed, shortened
from cohort.generation import Conversation
from cohort.generative.chat_sandbox import ChatSandbox, check_weight, render_bounded
from cohort.system.kept_files import read_small, why_unreadable

MAX_TEMPLATE_BYTES = 1 << 20

TOKENIZER_CONFIG_BYTES = 16 << 20

TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


class ChatTemplate:
    """The template of a model. Used on any thread.

    source: Its text, in Jinja's language.
    tokens: The texts of special tokens that it may write, by names such as "bos_token".
    tool_source: The template for conversations with tools; default: the same.

    Raises LoadFailed if it is not written in Jinja's language.
    """

    def __init__(
        self, source: str, tokens: Mapping[str, str] | None = None, tool_source: str | None = None
    ) -> None:
        self.source = source if tool_source is None else tool_source
        self._tokens = dict(tokens or {})
        sandbox = ChatSandbox()
        try:
            self._plain = sandbox.from_string(source)
            self._tools = self._plain if tool_source is None else sandbox.from_string(tool_source)
        except TemplateSyntaxError as error:
            raise LoadFailed(f"chat_template, line {error.lineno}: {error.message}") from None
        except (RecursionError, TemplateError) as error:
            raise LoadFailed(f"chat_template: {error}") from None

    def render(
        self, conversation: Conversation, hide: Callable[[Any], Any] = lambda value: value
    ) -> str:
        """Return the prompt.

        hide: Is applied to messages, tools and the values of options; default: they stay.

        Raises InvalidInput, which names `messages`.
        """
        template = self._tools if conversation.tools else self._plain
        try:
            check_weight(conversation.messages, conversation.tools, conversation.options)
            return render_bounded(
                template,
                {
                    "documents": None,
                    "add_generation_prompt": True,
                    **{name: hide(value) for name, value in conversation.options.items()},
                    **self._tokens,
                    "messages": [hide(self._prepare(one)) for one in conversation.messages],
                    "tools": hide(list(conversation.tools)) or None,
                },
            )
        except SecurityError as error:
            problem = f"the model's chat template cannot be used: {error.message}"
        except TemplateError as error:
            problem = f"the model's chat template rejects the messages: {error.message}"
        except RecursionError:
            problem = "the model's chat template is nested too deeply for these messages"
        except Exception as error:  # noqa: BLE001 - templates raise errors of any kind
            problem = f"the model's chat template does not fit the messages: {error}"
        raise InvalidInput(shortened(problem, 400), "messages")

    def _prepare(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return a message as templates expect it, from one of OpenAI's API."""
        prepared = dict(message)
        if prepared.get("role") == "developer" and "developer" not in self.source:
            prepared["role"] = "system"
        if isinstance(content := prepared.get("content"), list):
            prepared["content"] = _plain_text(content)
        if calls := prepared.get("tool_calls"):
            prepared["tool_calls"] = [_read_arguments(call) for call in calls]
            if prepared.get("content") is None:
                prepared["content"] = ""
        return prepared


def _plain_text(content: list[Any]) -> Any:
    """Join parts that are texts; return other content as it is."""
    if all(isinstance(part, Mapping) and part.get("type") == "text" for part in content):
        return "".join(str(part.get("text", "")) for part in content)
    return content


def _read_arguments(call: Any) -> Any:
    """Return a call whose arguments are an object; in the API, they are JSON text."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(text := function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def open_template(folder: Path) -> ChatTemplate | None:
    """Read the chat template of a version's folder; None if there is no template.

    It is in chat_template.jinja, or in tokenizer_config.json, alone or as the one named "default".
    Raises LoadFailed.
    """
    config = _read_config(folder / "tokenizer_config.json")
    tokens = {name: text for name in TOKENS if (text := _token(config.get(name))) is not None}
    written = _read(folder / "chat_template.jinja", MAX_TEMPLATE_BYTES)
    if written is not None:
        return ChatTemplate(written, tokens)
    found = config.get("chat_template")
    if isinstance(found, list):
        named = {
            one.get("name"): one["template"]
            for one in found
            if isinstance(one, dict) and isinstance(one.get("template"), str)
        }
        if not named:
            raise LoadFailed("tokenizer_config.json: chat_template has no template")
        plain = named.get("default", next(iter(named.values())))
        return ChatTemplate(_checked(plain), tokens, _checked(named.get("tool_use", plain)))
    return ChatTemplate(_checked(found), tokens) if isinstance(found, str) else None


def _checked(source: str) -> str:
    if len(source) > MAX_TEMPLATE_BYTES:
        raise LoadFailed(f"chat_template has {len(source)} characters; the limit is 1 MiB")
    return source


def _read_config(file: Path) -> dict[str, Any]:
    text = _read(file, TOKENIZER_CONFIG_BYTES)
    if text is None:
        return {}
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LoadFailed(f"{file.name} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise LoadFailed(f"{file.name} must be a JSON object")
    return config


def _token(value: Any) -> str | None:
    """Return the text of a token, which may be an object with its options."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _read(file: Path, limit: int) -> str | None:
    try:
        return read_small(file, limit)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise LoadFailed(f"{file.name} {why_unreadable(error)}") from None
