"""Pages name files, and names in them, that exist, and every route of the app.

That their links lead somewhere is seen to by `make site`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cohort.process.application import create_app
from cohort.settings import Settings
from tests.pages.blocks import PAGES

ROOT = Path(__file__).parents[1]
PLACE = re.compile(r"`((?:app|tests|tools|benchmarks|deploy|docs)/[\w./-]+)(?:::([\w.]+))?`")
ROUTE = re.compile(r"`(?:(GET|POST) )?(/[^`\s]*)`")


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
    """Return True if a module defines a name, or a method or field of a class: `Class.method`."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    for name in dotted.split("."):
        found = dict(defined_in(body)).get(name)
        if found is None:
            return False
        body = found.body if isinstance(found, ast.ClassDef) else []
    return True


def missing_places(text: str) -> list[str]:
    """Return the files and names a page mentions in backticks that are not there."""
    missing = []
    for file, name in PLACE.findall(text):
        path = ROOT / file
        if not path.exists() or (name and not has(path, name)):
            missing.append(f"{file}::{name}" if name else file)
    return missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_is_there(page: Path) -> None:
    """Files, and names in them."""
    assert not missing_places(page.read_text(encoding="utf-8"))


def test_each_promise_names_the_test_that_holds_it() -> None:
    """Each row of the page on reliability; `test_what_a_page_names_is_there` sees to the names."""
    text = (ROOT / "docs/operations/reliability.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?!promise|---)(.+?) \| (.+) \|$", text, re.MULTILINE)
    assert len(rows) > 20
    assert not [promise for promise, held in rows if not re.search(r"`tests/\S+::test_\w+`", held)]


def test_what_is_not_there_is_caught() -> None:
    """A file, a function and a method that do not exist; those that do are fine."""
    errors = "app/cohort/errors.py"
    good = f"`{errors}`, `{errors}::CohortError`, `{errors}::CohortError.redacted`"
    assert not missing_places(good)
    for bad in (
        "app/nowhere.py",
        "app/cohort/errors.py::Nothing",
        "app/cohort/errors.py::quoted.x",
    ):
        assert missing_places(f"see `{bad}`") == [bad]


def spellings(path: str) -> Iterator[str]:
    """Yield the paths that `/a[/b|/c]` stands for: /a, /a/b and /a/c."""
    before, bracket, rest = path.partition("[")
    if not bracket:
        yield path
        return
    inside, _, after = rest.partition("]")
    for part in ("", *inside.split("|")):
        yield from spellings(before + part + after)


def documented_routes(text: str) -> set[tuple[str, str]]:
    """The methods and paths in a page's tables; a path without a method has the one before it."""
    routes = set()
    for row in re.findall(r"^\| (`.*?) \| ", text, re.MULTILINE):
        method = ""
        for given, path in ROUTE.findall(row.replace(r"\|", "|")):
            method = given or method
            routes |= {(method, one) for one in spellings(path)}
    return routes


@pytest.mark.filterwarnings("ignore:Duplicate Operation ID")  # one function for GET and HEAD
def test_the_reference_has_every_route(tmp_path: Path) -> None:
    """Each route of the OpenAPI document is in a table of the REST reference, and no other is."""
    app = create_app(settings=Settings(models=tmp_path, state=tmp_path, cache=tmp_path))
    routes = {
        (method.upper(), path)
        for path, operations in app.openapi()["paths"].items()
        for method in operations
        if method in {"get", "post"}
    }
    folder = ROOT / "docs/reference"
    pages = [(folder / name).read_text(encoding="utf-8") for name in ("rest.md", "v1.md", "v2.md")]
    documented = set[tuple[str, str]]().union(*map(documented_routes, pages))
    elsewhere = {(method, path) for method, path in documented if re.search("/labels/|…", path)}
    assert documented - elsewhere == routes
