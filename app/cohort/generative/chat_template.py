"""Chat templates, which turn the messages of a conversation into text."""

from __future__ import annotations

from pathlib import Path

from cohort.generation import Conversation


class ChatTemplate:
    """A template of a model.

    source: Its text, in Jinja's language.
    """

    def __init__(self, source: str) -> None:
        self.source = source

    def render(self, conversation: Conversation) -> str:
        """Return the prompt. Raises InvalidInput, which names `messages`."""
        return "".join(f"{one['role']}: {one['content']}\n" for one in conversation.messages)


def open_template(folder: Path) -> ChatTemplate | None:
    """Read the chat template."""
    return None
