"""Compare the output of a block with its page."""

from __future__ import annotations

import re

from tests.pages.blocks import Block
from tests.pages.terminal import BlockFailed

NUMBER = r"-?\d+\.\d+(?:e[-+]?\d+)?"


def pattern(shown: str) -> re.Pattern[str]:
    """Match what a page shows, without spaces: a decimal may be any number, `…` is anything.

    Scores differ in their last digits from one machine to another, and times at each run.
    """
    words = re.split(rf"({NUMBER}|…)", re.sub(r"\s", "", shown))
    any_of = {"…": ".*?"}
    return re.compile(
        "".join(
            any_of.get(word, r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?") if at % 2 else re.escape(word)
            for at, word in enumerate(words)
        )
    )


def shown_in(block: Block) -> list[str]:
    """Return the shown output of a block, from its comments: the lines `# {…` and `# […`."""
    if block.language not in {"sh", "bash"}:
        return []
    return re.findall(r"^# ([{\[].*)$", block.text, re.MULTILINE)


def compare(block: Block, shown: list[str], printed: str) -> None:
    """Find each text of `shown` in what was printed, in order. Raises BlockFailed.

    A server's error is printed where the page shows one, only: curl takes it for an answer.
    """
    if '{"error":' in printed and not any('"error":' in text for text in shown):
        raise BlockFailed(f"line {block.line}: the page shows no error, but this is:\n{printed}")
    rest = re.sub(r"\s", "", printed)
    for text in shown:
        found = pattern(text).search(rest)
        if found is None:
            raise BlockFailed(f"line {block.line}: the page shows\n{text}\nbut this is:\n{printed}")
        rest = rest[found.end() :]
