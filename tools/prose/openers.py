"""Find sentences that open with a clause and have no main verb: "What keeps a caller here."."""

from __future__ import annotations

import re

from tools.prose.words import read_set


def find_opener(sentence: str) -> str | None:
    """Return the first word of `sentence` if it opens a clause and no main verb follows.

    "Who" and "whose" are returned in any case. Questions, quoted words, "How to ..." and
    "Of course" pass. So does a sentence that may have a main verb: only common verbs are known.
    """
    if sentence.startswith(('"', "'")):
        return None
    words: list[str] = [
        word.lower() for word in re.findall(r"[\w'\u2019-]+|[:;.?!\u2013\u2014]", sentence)
    ]
    if len(words) < 3 or words[0] not in _OPENERS or words[-1] == "?":
        return None
    if words[:2] in (["how", "to"], ["of", "course"]):
        return None
    if words[0].startswith("who"):
        return words[0]
    end = next((at for at, word in enumerate(words) if word in _STOPS), len(words))
    return None if _has_main_verb(words[:end]) else words[0]


def _has_main_verb(words: list[str]) -> bool:
    """Return True if `words` have a verb outside clauses such as "what it takes"."""
    in_clause = False
    before = ""
    for word in words:
        if word in _SUBORDINATORS:
            in_clause = True
        elif word in _VERBS and before not in _BEFORE_NOUNS:
            if not in_clause and before not in _AUXILIARIES:
                return True
            # In "what it takes is" the first verb ends the clause, since no noun follows it.
            ended = before in _AUXILIARIES or _SINGULAR_VERB.fullmatch(before)
            if word.endswith("s") and ended:
                return True
            in_clause = False
        before = word
    return False


_STOPS = set(":;.?!\u2013\u2014")
_SINGULAR_VERB = re.compile(r"(?!this$|its$)\w+[^s]s")
_OPENERS = read_set("openers")
_SUBORDINATORS = read_set("subordinators")
_BEFORE_NOUNS = read_set("before_nouns")
_AUXILIARIES = read_set("auxiliaries")
_VERBS = _AUXILIARIES | read_set("verbs")
