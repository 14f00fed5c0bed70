"""Chat templates of the families of models, and templates and messages that are hostile."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cohort.errors import InvalidInput, LoadFailed
from cohort.generation import Conversation
from cohort.generative.chat_template import ChatTemplate, open_template
from tests.generative import chat_templates

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

HELLO = [{"role": "user", "content": "Hi <b>ü</b> "}]

CALLS: list[dict[str, Any]] = [
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Köln"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "1", "content": "sun"},
]

WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}


def render(source: str, messages: list[Any], **more: Any) -> str:
    return ChatTemplate(source, TOKENS).render(Conversation(messages, **more))


def test_chatml_with_tools() -> None:
    """The form of Qwen: calls have their arguments as objects, and text is not escaped."""
    assert render(chat_templates.CHATML, HELLO) == (
        "<|im_start|>system\nYou are helpful.<|im_end|>\n"
        "<|im_start|>user\nHi <b>ü</b> <|im_end|>\n<|im_start|>assistant\n"
    )
    prompt = render(chat_templates.CHATML, CALLS, tools=[WEATHER])
    assert json.dumps(WEATHER) in prompt
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>' in prompt
    assert "<tool_response>\nsun\n</tool_response><|im_end|>\n<|im_start|>assistant\n" in prompt


def test_headers() -> None:
    """The form of Llama 3: a date, and one call at once."""
    options = {"date_string": "1 May 2026"}
    messages = [{"role": "system", "content": " Be kind. "}, *HELLO]
    assert render(chat_templates.HEADERS, messages, options=options) == (
        "<s><|start_header_id|>system<|end_header_id|>\n\nToday: 1 May 2026\nBe kind.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi <b>ü</b><|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert "Today: " in render(chat_templates.HEADERS, HELLO)
    assert '{"name": "weather", "parameters": {"city": "Köln"}}' in render(
        chat_templates.HEADERS, CALLS
    )
    twice = [{**CALLS[1], "tool_calls": CALLS[1]["tool_calls"] * 2}]
    with pytest.raises(InvalidInput, match="rejects the messages: This model only supports"):
        render(chat_templates.HEADERS, twice)


def test_brackets() -> None:
    """The form of Mistral: roles alternate."""
    chat = [*HELLO, {"role": "assistant", "content": "Hello"}, *HELLO]
    assert render(chat_templates.BRACKETS, chat) == (
        "<s>[INST] Hi <b>ü</b> [/INST] Hello</s>[INST] Hi <b>ü</b> [/INST]"
    )
    assert '[AVAILABLE_TOOLS] [{"type": "function", "function": {"name": "weather", ' in render(
        chat_templates.BRACKETS, HELLO, tools=[WEATHER]
    )
    with pytest.raises(InvalidInput, match="must alternate user") as caught:
        render(chat_templates.BRACKETS, HELLO * 2)
    assert caught.value.parameter == "messages"


def test_turns() -> None:
    """The form of Gemma: no system role."""
    assert render(chat_templates.TURNS, HELLO) == (
        "<s><start_of_turn>user\nHi <b>ü</b><end_of_turn>\n<start_of_turn>model\n"
    )
    with pytest.raises(InvalidInput, match="System role not supported"):
        render(chat_templates.TURNS, [{"role": "system", "content": "x"}])


def test_tags() -> None:
    """The form of Phi, with blocks for training, and `break`."""
    chat = [{"role": "user", "content": "last words"}, *HELLO]
    assert render(chat_templates.TAGS, chat) == "<|user|>\nlast words<|end|>\n<|assistant|>\n"
    options = {"add_generation_prompt": False}
    assert render(chat_templates.TAGS, chat, options=options).endswith("<|end|>\n</s>")


def test_content_of_parts_is_text() -> None:
    """Parts that are texts are joined, and the developer is the system for older templates."""
    parts = [{"type": "text", "text": "Be "}, {"type": "text", "text": "kind."}]
    prompt = render(chat_templates.CHATML, [{"role": "developer", "content": parts}, *HELLO])
    assert prompt.startswith("<|im_start|>system\nBe kind.<|im_end|>\n")


HOSTILE = {
    "loops": "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
    "text": "{{ 'a' * 1000000000 }}",
    "list": "{{ ([0] * 100000 * 100000) | length }}",
    "power": "{{ 9 ** 9 ** 9 }}",
    "squares": "{% set n = namespace(x=9) %}{% for i in range(90) %}"
    "{% set n.x = n.x * n.x %}{% endfor %}",
    "doubling": "{% set n = namespace(x='ab') %}{% for i in range(90) %}"
    "{% set n.x = n.x + n.x %}{% endfor %}",
    "joining": "{% set n = namespace(x='ab') %}{% for i in range(90) %}"
    "{% set n.x = n.x ~ n.x %}{% endfor %}",
    "output": "{% set a = 'a' * 1000000 %}{% for i in range(999) %}{{ a }}{% endfor %}",
    "block": "{% set a = 'a' * 1000000 %}{% set b %}{% for i in range(999) %}{{ a }}{% endfor %}"
    "{% endset %}",
    "macro": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}"
    "{{ m(60) }}",
    "deep macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "lists": "{% set n = namespace(x=[1]) %}{% for i in range(60) %}"
    "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
    "equal lists": "{% set n = namespace(x=[1], y=[1]) %}{% for i in range(60) %}"
    "{% set n.x = [n.x, n.x] %}{% set n.y = [n.y, n.y] %}{% endfor %}{{ n.x == n.y }}",
    "json": "{% set n = namespace(x=[1]) %}{% for i in range(60) %}"
    "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x | tojson }}",
    "replace": "{% set a = 'a' * 100000 %}{{ a.replace('a', a) }}",
    "replace filter": "{% set a = 'a' * 100000 %}{{ a | replace('a', a) }}",
    "join": "{% set a = 'a' * 100000 %}{{ a.join(a) }}",
    "join filter": "{% set a = 'a' * 100000 %}{{ a | join(a) }}",
    "indent": "{{ ('\n' * 1000000) | indent(1000000000) }}",
    "width": "{{ 'a'.ljust(1000000000) }}",
    "format": "{{ '{:>1000000000}'.format(1) }}",
    "percent": "{{ '%1000000000d' % 1 }}",
    "star": "{{ '%*d' % (1000000000, 1) }}",
    "maps": "{% set a = range(99999) | list %}{% for i in range(99999) %}"
    "{% set b = a | map('string') | list %}{% endfor %}",
    "missing filter": "{{ 'a' | center(1000000000) }}",
    "class": "{{ ''.__class__.__mro__ }}",
    "globals": "{{ raise_exception.__globals__.x }}",
    "environment": "{{ self._TemplateReference__context.environment }}",
    "change": "{{ messages.append(1) }}",
    "file": "{% include '/etc/passwd' %}",
    "attr": "{{ ('' | attr('__class__')).x.y }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_end_soon(name: str) -> None:
    """Whatever a template computes, its steps, sizes and time are bounded, and it sees no files."""
    try:
        template = ChatTemplate(HOSTILE[name])
    except LoadFailed:
        return
    with pytest.raises(InvalidInput) as caught:
        template.render(Conversation(HELLO))
    assert caught.value.parameter == "messages"
    assert "chat template" in caught.value.message


@pytest.mark.parametrize(
    "messages",
    [
        [{}],
        [{"role": "user"}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": None}],
        [{"role": ["user"], "content": {"a": []}}],
        [{"role": "user", "content": [{"type": "image_url"}]}],
        [{"role": "assistant", "tool_calls": [1]}],
        [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}],
        [{"role": "assistant", "tool_calls": [{"function": {"arguments": "[" * 99999}}]}],
        [],
    ],
)
@pytest.mark.parametrize("source", ["CHATML", "HEADERS", "BRACKETS", "TURNS", "TAGS"])
def test_wrong_messages_are_the_callers_mistake(source: str, messages: list[Any]) -> None:
    """They are rendered or rejected with InvalidInput, and nothing else."""
    with suppress(InvalidInput):
        render(getattr(chat_templates, source), messages)


def test_messages_of_megabytes_are_rejected() -> None:
    """The limit is that of templates' texts."""
    with pytest.raises(InvalidInput, match="more than 4 MiB"):
        render(chat_templates.CHATML, [{"role": "user", "content": "a" * (5 << 20)}])


@pytest.mark.parametrize("form", ["text", "named", "file"])
def test_templates_are_found(tmp_path: Path, form: str) -> None:
    """In the tokenizer's config, alone or by name, or in a file, which wins."""
    plain, tools = "{{ bos_token }}plain", "{{ bos_token }}tools"
    config: dict[str, Any] = {"bos_token": {"content": "<s>"}, "chat_template": plain}
    if form == "named":
        config["chat_template"] = [
            {"name": "tool_use", "template": tools},
            {"name": "default", "template": plain},
        ]
    if form == "file":
        config["chat_template"] = "other"
        (tmp_path / "chat_template.jinja").write_text(plain)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    template = open_template(tmp_path)
    assert template is not None
    assert template.render(Conversation(HELLO)) == "<s>plain"
    with_tools = template.render(Conversation(HELLO, [WEATHER]))
    assert with_tools == ("<s>tools" if form == "named" else "<s>plain")


def test_models_without_a_template(tmp_path: Path) -> None:
    """A missing template is None; a wrong one is an error of loading, which names the line."""
    assert open_template(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert open_template(tmp_path) is None
    (tmp_path / "chat_template.jinja").write_text("a\n{% for %}")
    with pytest.raises(LoadFailed, match="chat_template, line 2"):
        open_template(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[")
    with pytest.raises(LoadFailed, match=r"tokenizer_config.json is not JSON"):
        open_template(tmp_path)
