"""Detection of regular expressions from files that take exponential time on some texts."""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"\\.|\[\^?\]?(?:\\.|\[:\w+:\]|\[[^\]]*\]|&&|[^\]\\])*\]"
    r"|\((?:\?(?:[a-z-]*:|<?[=!]|>|<\w+>|[a-z-]+\)|#[^)]*\)))?"
    r"|[+*]|\{\d*,?\d*\}|[|)?]|.",
    re.DOTALL,
)
_ATOMIC = "(?>"


def is_explosive(pattern: str) -> bool:
    """Return True for a repeated group that contains repetitions or alternatives, like `(a+)+`.

    Such groups try exponentially many matches on texts that do not match. The time of all other
    expressions is polynomial in the length of the text. False positives are possible.
    """
    groups = [False]  # for each open group: True if it has a repetition or an alternative
    closed: bool | None = None  # the value of the group that was just closed
    for match in _TOKEN.finditer(pattern):
        piece = match[0]
        before, closed = closed, None
        if piece in "+*" or (piece[0] == "{" and _repeats(piece)):
            if before:
                return True
            groups[-1] = True
        elif piece == "|":
            groups[-1] = groups[-1] or len(groups) > 1
        elif piece == ")":
            inner = groups.pop() if len(groups) > 1 else False
            groups[-1] = groups[-1] or inner
            closed = inner
        elif piece[0] == "(" and not piece.endswith(")"):
            groups.append(False)
        elif piece == "?":
            closed = before  # lazy or optional: (a+)?+ is still one
    return False


def _repeats(piece: str) -> bool:
    low, comma, high = piece[1:-1].partition(",")
    most = high if comma else low
    return piece != "{}" and (not most or int(most[:9]) > 8)
