"""Calls of tools in the text of an answer."""

from __future__ import annotations

from cohort.generation import ToolReader
from cohort.generative.chat_template import ChatTemplate

TOOL_MARKERS = frozenset({"[TOOL_CALLS]", "<|python_tag|>", "<tool_call>", "</tool_call>"})


def make_tool_reader(template: ChatTemplate | None) -> ToolReader | None:
    """Return a reader for the markers that the template contains; None if it contains none."""
    if template is None or not any(marker in template.source for marker in TOOL_MARKERS):
        return None
    return None
