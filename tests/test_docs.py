"""Pages that name files, names in them, or other pages: all of those exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/*.md", "models/*.md", "deploy/**/*.md")
    for page in ROOT.glob(pattern)
)
PLACE = re.compile(r"`((?:app|tests|benchmarks|deploy|docs)/[\w./-]+)(?:::([\w.]+))?`")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def defined_in(body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """The names that statements define, each with its statement; `self.x` counts for its class."""
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name, node
            case ast.ClassDef(name=name):
                yield name, node
            case ast.Assign(targets=targets):
                yield from ((one.id, node) for one in targets if isinstance(one, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name, node


def has(path: Path, dotted: str) -> bool:
    """Whether a module defines a name, or a class in it a method or field: `Class.method`."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    for name in dotted.split("."):
        found = dict(defined_in(body)).get(name)
        if found is None:
            return False
        body = found.body if isinstance(found, ast.ClassDef) else []
    return True


def missing_places(text: str) -> list[str]:
    """The files and names a page mentions in backticks that are not there."""
    missing = []
    for file, name in PLACE.findall(text):
        path = ROOT / file
        if not path.exists() or (name and not has(path, name)):
            missing.append(f"{file}::{name}" if name else file)
    return missing


def missing_links(page: Path, text: str) -> list[str]:
    """The relative links of a page that lead nowhere."""
    return [
        link
        for link in LINK.findall(text)
        if not re.match(r"\w+:", link) and not (page.parent / link).exists()
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_is_there(page: Path) -> None:
    """Files, names in them, and links to other pages."""
    text = page.read_text(encoding="utf-8")
    assert not missing_places(text)
    assert not missing_links(page, text)


def test_what_is_not_there_is_caught(tmp_path: Path) -> None:
    """A file, a function, a method and a link that do not exist; those that do are fine."""
    good = "`app/errors.py`, `app/errors.py::CohortError`, `app/errors.py::CohortError.redacted`"
    assert not missing_places(good)
    for bad in ("app/nowhere.py", "app/errors.py::Nothing", "app/errors.py::quoted.x"):
        assert missing_places(f"see `{bad}`") == [bad]
    (tmp_path / "there.md").touch()
    links = "[a](there.md#part) [b](https://example.org) [c](gone.md)"
    assert missing_links(tmp_path / "page.md", links) == ["gone.md"]
