"""Find what is not plain in a file: openers, banned words, long sentences, lines and bounds."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from tools.prose.openers import find_opener
from tools.prose.passages import Kind, find_passages
from tools.prose.sentences import Sentence, split_sentences
from tools.prose.words import read_banned

MAX_WORDS = 25
"""Words of a sentence, where a code span counts as one."""


class Rule(StrEnum):
    OPENER = "opener"
    BANNED = "banned word"
    LONG = "long sentence"
    LINE = "sentence per line"
    BOUND = "name of a bound"


@dataclass(frozen=True, slots=True)
class Finding:
    """One place that is not plain, and what to write instead."""

    rule: Rule
    path: str
    line: int
    sentence: str
    advice: str

    def __str__(self) -> str:
        """Return the finding on one line, as linters print theirs."""
        return f"{self.path}:{self.line}: {' '.join(self.sentence.split())} … {self.advice}"


_BANNED = read_banned()


def check(path: str, source: str) -> list[Finding]:
    """Return what is not plain in the file at `path`, by line. Raises SyntaxError."""
    found = list(_check_bounds(path, source) if path.endswith(".py") else ())
    for passage in find_passages(path, source):
        sentences = split_sentences(passage)
        for sentence in sentences:
            for rule, advice in _check_sentence(sentence):
                found.append(Finding(rule, path, sentence.line, sentence.written, advice))
        if passage.kind is Kind.PARAGRAPH and not _one_per_line(sentences):
            one = sentences[0]
            advice = "write one sentence per line"
            found.append(Finding(Rule.LINE, path, one.line, one.written, advice))
    return sorted(found, key=lambda one: one.line)


def _check_sentence(sentence: Sentence) -> Iterator[tuple[Rule, str]]:
    if sentence.kind is not Kind.HEADING and (opener := find_opener(sentence.read)):
        yield Rule.OPENER, f'say the noun instead of "{opener} ...", or add a main verb'
    for one in _BANNED:
        if match := one.pattern.search(sentence.read):
            words = " ".join(match[0].split())
            yield Rule.BANNED, f'instead of "{words}" say: {one.instead}'
    if (count := len(sentence.words)) > MAX_WORDS:
        yield Rule.LONG, f"{count} words: write sentences of at most {MAX_WORDS}"


def _one_per_line(sentences: list[Sentence]) -> bool:
    lines = [sentence.line for sentence in sentences]
    return len(set(lines)) == len(lines) and all(one.line == one.last_line for one in sentences)


def _check_bounds(path: str, source: str) -> Iterator[Finding]:
    """Find constants whose names say MOST or LEAST where others say MAX or MIN."""
    if not _BOUND.search(source):
        return
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)):
            continue
        if match := _BOUND.fullmatch(node.id):
            instead = f"{match['mark']}{_BOUNDS[match['word']]}_{match['rest']}"
            yield Finding(Rule.BOUND, path, node.lineno, node.id, f"name it {instead}")


_BOUNDS = {"MOST": "MAX", "LONGEST": "MAX", "LARGEST": "MAX", "LEAST": "MIN", "SHORTEST": "MIN"}
_BOUND = re.compile(rf"\b(?P<mark>_?)(?P<word>{'|'.join(_BOUNDS)})_(?P<rest>[A-Z0-9_]+)\b")
