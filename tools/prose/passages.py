"""Find the English text in a file: docstrings, comments, messages, documents and pages."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from html.parser import HTMLParser
from pathlib import PurePosixPath

from markdown_it import MarkdownIt
from markdown_it.token import Token


class Kind(Enum):
    """The kinds of text, which have different rules."""

    DOCSTRING = "docstring"
    COMMENT = "comment"
    MESSAGE = "message"
    """A string that people read: an error, a help text, a log line or a label."""
    PARAGRAPH = "paragraph"
    """A paragraph or list item of a document. Its source has one sentence per line."""
    CELL = "cell"
    HEADING = "heading"
    """A heading of a document or of a table's column."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A text that sentences do not leave: one paragraph, list item, comment or message."""

    kind: Kind
    line: int
    """The line of the file that the text starts in, from 1."""
    text: str


def find_passages(path: str, source: str) -> list[Passage]:
    """Return the passages of a file in the order of its lines; [] for an unknown kind of file.

    Raises SyntaxError if Python source cannot be parsed.
    """
    if not has_text(path):
        return []
    read = _READERS[_kind_of(path)]
    if path.startswith("tests/") and read is _read_python:
        read = _read_python_tests
    return sorted(read(source), key=lambda one: one.line)


def has_text(path: str) -> bool:
    """Return True if `find_passages` reads files like this. Generated code is not read."""
    return _kind_of(path) in _READERS and "_pb2" not in path


def _kind_of(path: str) -> str:
    """Return a file's suffix, or the name of a file without a suffix."""
    pure = PurePosixPath(path)
    return pure.suffix or pure.name


def _read_python(source: str) -> Iterator[Passage]:
    tree = ast.parse(source)
    yield from _docstrings(tree)
    yield from _messages(tree)
    yield from _comments(source, _PYTHON, "#")


def _read_python_tests(source: str) -> Iterator[Passage]:
    """Leave out strings: in tests they are data."""
    yield from _docstrings(ast.parse(source))
    yield from _comments(source, _PYTHON, "#")


def _docstrings(node: ast.AST) -> Iterator[Passage]:
    """Yield the docstrings of modules, classes, functions and attributes."""
    for part in ("body", "orelse"):
        for statement in getattr(node, part, ()):
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                text = _text(statement.value)
                yield from _paragraphs(Kind.DOCSTRING, statement.lineno, text)
            else:
                yield from _docstrings(statement)


def _messages(tree: ast.AST) -> Iterator[Passage]:
    """Yield strings that people read: in `raise`, in help texts, and all that read as a phrase."""
    skipped: set[ast.AST] = set()
    shown: set[ast.AST] = set()
    # A parent comes before its children.
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            skipped.add(node.value)
        elif isinstance(node, ast.Raise):
            shown.update(ast.walk(node))
        elif isinstance(node, ast.keyword) and node.arg in _HELP:
            shown.add(node.value)
        elif isinstance(node, ast.Constant | ast.JoinedStr):
            if isinstance(node, ast.JoinedStr):
                skipped.update(node.values)
            text = _text(node)
            if node not in skipped and " " in text and (node in shown or _is_prose(text)):
                yield from _paragraphs(Kind.MESSAGE, node.lineno, text)


_HELP = ("help", "short_help", "epilog", "description")


def _text(string: ast.Constant | ast.JoinedStr) -> str:
    """Return the text of a string, with `{...}` for expressions; "" for other constants."""
    if isinstance(string, ast.JoinedStr):
        parts = (one.value if isinstance(one, ast.Constant) else "{...}" for one in string.values)
        return "".join(map(str, parts))
    return string.value if isinstance(string.value, str) else ""


def _is_prose(text: str) -> bool:
    """Return True if `text` reads as a phrase: four plain words or more, and little else."""
    words = text.split()
    plain = sum(1 for word in words if _PLAIN.fullmatch(word))
    return plain >= 4 and plain >= 0.6 * len(words)


_PLAIN = re.compile(r"""["'(]?[A-Za-z][a-z]*(?:['\u2019-][a-z]+)*[)"',.:;?!]*""")

_PYTHON = re.compile(
    r'''(?P<string>"""(?:[^\\]|\\.)*?"""|\'\'\'(?:[^\\]|\\.)*?\'\'\'|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')'''
    r"|\#(?P<comment>[^\n]*)",
    re.DOTALL,
)
_JAVASCRIPT = re.compile(
    r"""(?P<string>`(?:[^`\\]|\\.)*`|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
    r"|//(?P<comment>[^\n]*)|/\*+(?P<block>.*?)\*/",
    re.DOTALL,
)
_SHELL = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*"|'[^']*')|(?<!\S)\#(?P<comment>[^\n]*)""", re.DOTALL
)
_DIRECTIVE = re.compile(
    r"(?i)\s*(?:!|noqa|type:|pragma|fmt:|mypy:|ruff:|shellcheck|eslint|@ts-|-\*-)"
)


def _comments(source: str, tokens: re.Pattern[str], mark: str) -> Iterator[Passage]:
    """Yield comments. Whole lines of comment, one under the other, are one text."""
    block: list[str] = []
    expected = start = 0
    for token in tokens.finditer(source):
        text = token["comment"]
        if text is None:
            continue
        line = source.count("\n", 0, token.start()) + 1
        alone = not source[source.rfind("\n", 0, token.start()) + 1 : token.start()].strip()
        if block and not (alone and line == expected):
            yield from _paragraphs(Kind.COMMENT, start, "\n".join(block))
            block = []
        if _DIRECTIVE.match(text):
            text = ""
        if not block:
            start = line
        block.append(text.lstrip(f"{mark}:"))
        expected = line + 1 if alone else 0
    if block:
        yield from _paragraphs(Kind.COMMENT, start, "\n".join(block))


def _read_javascript(source: str) -> Iterator[Passage]:
    yield from _comments(source, _JAVASCRIPT, "/")
    for token in _JAVASCRIPT.finditer(source):
        line = source.count("\n", 0, token.start()) + 1
        if token["block"]:
            text = re.sub(r"(?m)^[ \t]*\* ?", "", token["block"])
            yield from _paragraphs(Kind.COMMENT, line, _JSDOC.sub("\n- ", text))
        elif token["string"] and _is_prose(text := token["string"][1:-1].replace("${", "{")):
            yield from _paragraphs(Kind.MESSAGE, line, text)


# Replaces a tag by a list item, so that its text is separate and its line stays the same.
_JSDOC = re.compile(r"\n[ \t]*@\w+(?: \{[^\n]*?\}(?= |$))?(?: \[?[\w.]+\]?)?", re.MULTILINE)


def _read_shell(source: str) -> Iterator[Passage]:
    """Read a shell script, or a Makefile, where `##` precedes the help text of a target."""
    yield from _comments(source, _SHELL, "#")
    for token in _SHELL.finditer(source):
        if token["string"] and _is_prose(text := _EXPANDED.sub("{...}", token["string"][1:-1])):
            line = source.count("\n", 0, token.start()) + 1
            yield from _paragraphs(Kind.MESSAGE, line, text)


_EXPANDED = re.compile(r"\$\$?(?:\{[^{}]*\}|\([^()]*\)|\w+)")


def _read_html(source: str) -> Iterator[Passage]:
    page = _Page()
    page.feed(source)
    return iter(page.passages)


class _Page(HTMLParser):
    """Collects the text of a page without its scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.passages: list[Passage] = []
        self._tag = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._tag = tag

    def handle_endtag(self, tag: str) -> None:
        self._tag = ""

    def handle_data(self, data: str) -> None:
        if self._tag not in ("script", "style"):
            self.passages.extend(_paragraphs(Kind.MESSAGE, self.getpos()[0], data))


def _read_markdown(source: str) -> Iterator[Passage]:
    kinds = {"heading_open": Kind.HEADING, "th_open": Kind.HEADING, "td_open": Kind.CELL}
    before = ""
    for token in MarkdownIt().enable("table").parse(_without_front_matter(source)):
        if token.type == "inline" and token.map and token.children:
            kind = kinds.get(before, Kind.PARAGRAPH)
            yield Passage(kind, token.map[0] + 1, "".join(map(_inline, token.children)))
        before = token.type


def _without_front_matter(source: str) -> str:
    header = re.match(r"---\n.*?\n---\n", source, re.DOTALL)
    return "\n" * header[0].count("\n") + source[header.end() :] if header else source


def _inline(token: Token) -> str:
    if token.type in ("softbreak", "hardbreak"):
        return "\n"
    if token.type == "code_inline":
        return f"`{token.content}`"
    return token.content if token.type == "text" else ""


def _paragraphs(kind: Kind, line: int, text: str) -> Iterator[Passage]:
    """Divide a docstring, comment or message at blank lines, list items and definitions.

    Code is left out: doctests, fenced blocks, lines indented after `::`, and click's `\\b` blocks.
    """
    block: list[str] = []
    start = line
    fenced = click_block = False
    literal: int | None = None
    for number, raw in enumerate(text.split("\n"), line):
        stripped = raw.strip()
        indent = len(raw) - len(raw.lstrip())
        if stripped.startswith("```"):
            fenced = not fenced
            stripped = ""
        elif fenced or stripped.startswith((">>>", "... ", "|", "+-")):
            stripped = ""
        elif stripped == "\b" or click_block:
            click_block, stripped = bool(stripped), ""
        elif literal is not None and stripped:
            if indent > literal:
                stripped = ""
            else:
                literal = None
        opened = _ITEM.match(stripped)
        if not opened and (not block or block[-1].endswith((".", ":", ";"))):
            opened = _DEFINITION.match(stripped)
        if block and (opened or not stripped):
            yield Passage(kind, start, "\n".join(block))
            block = []
        if stripped:
            if not block:
                start = number
            block.append(stripped[opened.end() :] if opened else stripped)
            if stripped.endswith("::"):
                literal = indent
    if block:
        yield Passage(kind, start, "\n".join(block))


_ITEM = re.compile(r"(?:[-*•]|\d+[.)]|:\w+[^:`]*:)\s+")
_DEFINITION = re.compile(r"\*{0,2}`*[A-Za-z_][\w.]*`*(?:, \w+)*(?: \([^)]*\))?:\s+(?=\S)")

_READERS: dict[str, Callable[[str], Iterator[Passage]]] = {
    ".html": _read_html,
    ".js": _read_javascript,
    ".md": _read_markdown,
    ".py": _read_python,
    ".sh": _read_shell,
    "Makefile": _read_shell,
    "run": _read_shell,
}
