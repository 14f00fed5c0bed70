"""Regular expressions of a file's author that would take for ever on some texts."""

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
    """Whether a group repeats that has repetitions or alternatives in it, such as `(a+)+`.

    Those try exponentially many ways to match where nothing does. All others try as many as a power
    of the text's length. What is no such group to the eye may be refused, too.
    """
    groups = [False]  # of each open group: whether it has a repetition or an alternative
    closed: bool | None = None  # of the group that has just been closed
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
