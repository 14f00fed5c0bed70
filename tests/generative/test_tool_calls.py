"""Calls of tools in streams of text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.generation import ToolCall
from cohort.generative.chat_template import ChatTemplate
from cohort.generative.tool_calls import make_tool_reader
from tests.generative import chat_templates

TEMPLATES = {
    "hermes": ChatTemplate(chat_templates.CHATML),
    "llama": ChatTemplate(chat_templates.HEADERS),
    "mistral": ChatTemplate(chat_templates.BRACKETS),
}

PARIS = ToolCall("weather", '{"city": "Paris"}')
ROME = ToolCall("time", '{"city": "Rome", "more": {"a": ["}", "\\"", "</tool_call>"]}}')


def read(style: str, parts: list[str]) -> list[str | ToolCall]:
    reader = make_tool_reader(TEMPLATES[style])
    assert reader is not None
    found = [one for part in parts for one in reader.add(part)]
    found += reader.rest()
    merged: list[str | ToolCall] = []
    for one in found:
        if isinstance(one, str) and merged and isinstance(last := merged[-1], str):
            merged[-1] = last + one
        else:
            merged.append(one)
    return merged


def written(call: ToolCall, key: str) -> str:
    return f'{{"name": "{call.name}", "{key}": {call.arguments}}}'


HERMES_PARIS = f"<tool_call>\n{written(PARIS, 'arguments')}\n</tool_call>"
HERMES_ROME = f"<tool_call>{written(ROME, 'arguments')}</tool_call>"

CASES: list[tuple[str, str, list[str | ToolCall]]] = [
    ("hermes", "Hello <b>", ["Hello <b>"]),
    ("hermes", HERMES_PARIS, [PARIS]),
    ("hermes", f"Let me see. {HERMES_PARIS}\n{HERMES_ROME}\n", ["Let me see. ", PARIS, ROME]),
    ("hermes", f"{HERMES_PARIS} done", [PARIS, " done"]),
    ("hermes", '<tool_call>{"name": "now"}</tool_call>', [ToolCall("now", "{}")]),
    ("hermes", "<tool_call>{oops}</tool_call> x", ["<tool_call>{oops}</tool_call> x"]),
    ("hermes", '<tool_call>{"a": </tool_call> x', ['<tool_call>{"a": </tool_call> x']),
    ("hermes", f"<tool_call>no {HERMES_PARIS}", ["<tool_call>no ", PARIS]),
    ("hermes", '<tool_call>{"name": "weather", "argum', ['<tool_call>{"name": "weather", "argum']),
    ("hermes", '{"name": "a", "arguments": {}}', ['{"name": "a", "arguments": {}}']),
    ("hermes", "<tool_call>[1]</tool_call>", ["<tool_call>[1]</tool_call>"]),
    ("hermes", "a <tool_call", ["a <tool_call"]),
    ("llama", written(PARIS, "parameters"), [PARIS]),
    ("llama", f"<|python_tag|>{written(PARIS, 'parameters')}", [PARIS]),
    ("llama", f"{written(PARIS, 'parameters')}; {written(ROME, 'parameters')}", [PARIS, ROME]),
    ("llama", '{"name": "Ann", "age": 5}', ['{"name": "Ann", "age": 5}']),
    ("llama", "{not JSON", ["{not JSON"]),
    ("llama", f"Use {written(PARIS, 'parameters')}", [f"Use {written(PARIS, 'parameters')}"]),
    ("llama", " \n", [" \n"]),
    ("mistral", f"[TOOL_CALLS] [{written(PARIS, 'arguments')}]", [PARIS]),
    (
        "mistral",
        f"[TOOL_CALLS][{written(PARIS, 'arguments')}, {written(ROME, 'arguments')}]",
        [PARIS, ROME],
    ),
    ("mistral", f"[TOOL_CALLS]weather[ARGS]{PARIS.arguments}", [PARIS]),
    ("mistral", f"[TOOL_CALLS]weather{PARIS.arguments}", [PARIS]),
    ("mistral", "[TOOL_CALLS] [1, 2] x", ["[TOOL_CALLS] [1, 2] x"]),
    ("mistral", "[TOOL_CALLS] weather, is it?", ["[TOOL_CALLS] weather, is it?"]),
    ("mistral", "see [TOOL] or [TOOL_CALLS", ["see [TOOL] or [TOOL_CALLS"]),
]


@pytest.mark.parametrize(("style", "text", "expected"), CASES)
def test_calls_are_found_in_any_parts(
    style: str, text: str, expected: list[str | ToolCall]
) -> None:
    """Whole, letter by letter, or in two parts, an answer has the same texts and calls."""
    assert read(style, [text]) == expected
    assert read(style, list(text)) == expected
    for cut in range(1, len(text)):
        assert read(style, [text[:cut], text[cut:]]) == expected


PIECES = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "[ARGS]", "<", "[", ";"),
        *("{", "}", "]", '"', "\\", '{"name": "a", "arguments": 5}', "a", " ", "\n", "é"),
    ]
)


@given(st.sampled_from(sorted(TEMPLATES)), st.lists(PIECES, max_size=20))
def test_text_is_never_lost(style: str, pieces: list[str]) -> None:
    """Without a complete call, all comes out as text."""
    assert "".join(map(str, read(style, pieces))) == "".join(pieces)


def test_text_is_sent_at_once() -> None:
    """Only what may be part of a call is held back."""
    reader = make_tool_reader(TEMPLATES["hermes"])
    assert reader is not None
    assert reader.add("Hello <tool") == ["Hello "]
    assert reader.add("box>") == ["<toolbox>"]


def test_models_without_markers_call_no_tools() -> None:
    """Their answers are text."""
    assert make_tool_reader(ChatTemplate(chat_templates.TURNS)) is None
    assert make_tool_reader(None) is None
