"""Reading an operator's YAML files; every problem is raised as ConfigProblems."""

from __future__ import annotations

import re
import stat
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    Event,
    ScalarEvent,
)
from ruamel.yaml.scanner import Scanner
from structlog.typing import FilteringBoundLogger

from cohort.errors import ConfigInvalid, quoted

MAX_FILE_BYTES = 64 * 1024
"""Limit of a file's size: reading YAML is slow, and a larger file would delay the server."""

MAX_VALUES = 10_000
"""Limit with every alias expanded: ten lines can stand for a billion values."""


MAX_DEPTH = 64
"""Limit of nested brackets: a thousand take seconds to read."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem in one place on disk: the file, the key's path in it, and a sentence.

    `file` is relative to the models folder; `key` is empty if the problem is the whole file.
    """

    file: str
    key: str
    sentence: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.file, self.key, self.sentence) if part)


def log_problems(
    log: FilteringBoundLogger, event: str, problems: Iterable[Problem], *, keeps_previous: bool
) -> None:
    """Log the problems of a watched file, and whether its previous content stays in use."""
    for problem in problems:
        log.error(
            event,
            file=problem.file,
            key=problem.key,
            problem=problem.sentence,
            keeps_previous=keeps_previous,
        )


class ConfigProblems(ConfigInvalid):
    """All problems of one file; `str(error)` has one line for each."""

    def __init__(self, problems: Collection[Problem]) -> None:
        self.problems = tuple(problems)
        first = self.problems[0]
        super().__init__(first.file, first.key, first.sentence)
        self.message = "\n".join(str(problem) for problem in self.problems)


def read_text(path: Path, file: str, *, most: int = MAX_FILE_BYTES) -> str | None:
    """Read an operator's file; None if it does not exist. Messages call it `file`.

    Raises ConfigProblems for anything that is not readable UTF-8 text of at most `most` bytes.
    """
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise _whole(file, "must be a file, not a folder or a device")
        if found.st_size > most:
            raise _whole(file, f"is too large: {found.st_size} bytes, at most {most} are read")
        with path.open("rb") as opened:
            return opened.read(found.st_size).decode("utf-8-sig")  # a file in /proc may be endless
    except FileNotFoundError:
        if path.is_symlink():
            raise _whole(file, "is a broken link; fix or remove it") from None
        return None
    except UnicodeDecodeError:
        raise _whole(file, "is not UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        raise _whole(file, f"cannot be read: {error.strerror or 'I/O error'}") from None


def parse_yaml(text: str, file: str) -> object:
    """Read YAML 1.2 without duplicate keys, with at most `MAX_VALUES` values; keys become text.

    Raises ConfigProblems, and nothing else, whatever the text is.
    """
    try:
        if "*" in text and _count_values(_reader().parse(text)) > MAX_VALUES:
            raise _whole(file, "its aliases refer to themselves or grow without bounds")
        return _named(_reader().load(text))
    except ConfigProblems:
        raise
    except MarkedYAMLError as error:
        raise _whole(file, _explain_yaml(error)) from None
    except RecursionError:
        raise _whole(file, "is nested too deeply") from None
    except Exception as error:  # noqa: BLE001 - a tag's constructor can raise anything
        line = str(error).strip().partition("\n")[0]
        raise _whole(file, f"is not YAML: {quoted(line or type(error).__name__)}") from None


class _ShallowScanner(Scanner):
    """A scanner that limits nested brackets: each value checks all open ones before it."""

    def fetch_flow_collection_start(self, *arguments: Any, **named: Any) -> None:
        if self.flow_level >= MAX_DEPTH:
            raise RecursionError
        super().fetch_flow_collection_start(*arguments, **named)


def _reader() -> YAML:
    yaml = YAML(typ="safe", pure=True)
    yaml.Scanner = _ShallowScanner
    return yaml


def _whole(file: str, sentence: str) -> ConfigProblems:
    return ConfigProblems([Problem(file, "", sentence)])


def _explain_yaml(error: MarkedYAMLError) -> str:
    problem = str(error.problem or error.context or "cannot be understood").partition("\n")[0]
    if twice := re.match(r'found duplicate key "(.*?)"', problem):
        problem = f"duplicate key {quoted(twice[1])}"
    if problem.startswith(r"found character '\t'"):
        problem = "a tab; YAML is indented by spaces"
    mark = error.problem_mark or error.context_mark
    return f"line {mark.line + 1}: {problem.strip()}" if mark else problem.strip()


def _count_values(events: Iterator[Event]) -> float:
    """Count a document's values with every alias expanded; infinite if one contains itself."""
    sizes: dict[str, float] = {}
    open_nodes: list[tuple[str | None, float]] = [(None, 0)]
    for event in events:
        if isinstance(event, CollectionEndEvent):
            anchor, size = open_nodes.pop()
        elif isinstance(event, CollectionStartEvent):
            if event.anchor:
                sizes[event.anchor] = float("inf")  # until its end is read
            open_nodes.append((event.anchor, 1))
            continue
        elif isinstance(event, AliasEvent):
            anchor, size = None, sizes.get(event.anchor, 0)
        elif isinstance(event, ScalarEvent):
            anchor, size = event.anchor, 1
        else:
            continue
        if anchor:
            sizes[anchor] = size
        around, total = open_nodes[-1]
        open_nodes[-1] = (around, total + size)
    return open_nodes[0][1]


def _named(tree: object) -> object:
    """Convert every key to text: an input may be called 0, and each key must be kept."""
    if isinstance(tree, dict):
        return {str(_named(key)): _named(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_named(value) for value in tree]
    if isinstance(tree, str):
        return tree.encode(errors="replace").decode()  # half a surrogate pair is not text
    return tree
