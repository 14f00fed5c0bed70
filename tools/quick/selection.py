"""Select the tests that a change needs, from the imports of modules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

_PROCESSES = re.compile(r"^(?:import|from) subprocess\b", re.MULTILINE)

_IMPORTS = re.compile(
    r"^\s*(?:from|import)\s+((?:cohort|cohort_prepare|tests|tools)\b[\w.]*)(?:\s+import\s+(\w+))?",
    re.MULTILINE,
)


LONG = frozenset(
    {
        "tests.batching.test_isolation",
        "tests.process.test_service",
        "tests.http.fast_path.test_coalescing",
        "tests.http.fast_path.test_heads",
        "tests.tools.simulation.test_simulation",
    }
)
"""Test modules that take many seconds and reach much: they run if their own package changed."""

ELSEWHERE = frozenset({"tests.session.test_providers_openvino"})
"""Test modules that need another environment: `make test` runs them there."""

OF_LAYOUT = "tests.test_architecture"
"""The rules of the layout, which any module of app may break."""

OF_PAGES = "tests.test_docs"


def select_tests(changed: Iterable[str], sources: Mapping[str, str]) -> list[str]:
    """Return the test modules that a change needs, as paths.

    These are the changed test modules, and those that import a changed helper of the tests or are
    below a changed conftest. For each changed package of `cohort` or `tools` they are its tests,
    those that import it, and those of modules of `cohort` that import it. Test modules that start
    processes or take long are left out, except a changed package's own, and so are those of another
    environment.

    changed: Paths of the changed files, those that are gone included.
    sources: The text of each Python file of `app`, `tests` and `tools`, by its path.
    """
    names = {_name(path): path for path in sources}
    imports = {name: _imports(sources[path], names) for name, path in names.items()}
    starting = {name for name, path in names.items() if _PROCESSES.search(sources[path])}
    tests = {name for name in names if _is_test(name)} - ELSEWHERE
    reach = {test: _closure(test, imports) for test in tests}
    slow = {test for test in tests if starting & reach[test]} | LONG

    changed = list(changed)
    wanted: set[str] = set()
    if any(path.endswith(".md") for path in changed):
        wanted |= {OF_PAGES} & tests
    for name in (_name(path) for path in changed if path.endswith(".py")):
        package = _package(name)
        if _is_test(name):
            wanted |= {name} & tests
        elif name.startswith("tests.") and name.endswith(".conftest"):
            folder = name.removesuffix("conftest")
            wanted |= {test for test in tests if test.startswith(folder)} - slow
        elif name.startswith("tests."):
            wanted |= {test for test in tests if name in reach[test]} - slow
        else:
            wanted |= _tests_of(package, tests)
            wanted |= {OF_LAYOUT} & tests
            wanted |= {test for test in tests if package in map(_package, imports[test])} - slow
            importers = {
                one
                for one in names
                if one.startswith("cohort")
                and _package(one) != package
                and package in map(_package, imports[one])
            }
            wanted |= {
                test for test in tests if any(_tests(test, one, imports) for one in importers)
            } - slow
    return sorted(names[test] for test in wanted)


def _name(path: str) -> str:
    parts = PurePosixPath(path.removeprefix("app/")).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _package(name: str) -> str:
    """`cohort.batching.queue` is of `cohort.batching`; all of tests is of `tests`."""
    top, _, rest = name.partition(".")
    return top if top == "tests" else f"{top}.{rest.partition('.')[0]}"


def _is_test(name: str) -> bool:
    return name.startswith("tests.") and name.rpartition(".")[2].startswith("test_")


def _tests_of(package: str, tests: set[str]) -> set[str]:
    """Tests of `cohort.errors` are `tests.errors.…` or `tests.test_errors`."""
    top, _, rest = package.partition(".")
    if top == "cohort_prepare":
        return {test for test in tests if test.startswith(f"tests.{top}.")}
    folder = f"tests.{rest}" if top == "cohort" else f"tests.tools.{rest}"
    return {test for test in tests if test.startswith(f"{folder}.") or test == f"tests.test_{rest}"}


def _tests(test: str, module: str, imports: Mapping[str, set[str]]) -> bool:
    """Return True if a test module imports a module, or has its name: `test_queue`, `queue`."""
    return module in imports[test] or (
        test.rpartition(".")[2] == f"test_{module.rpartition('.')[2]}"
        and test in _tests_of(_package(module), {test})
    )


def _imports(source: str, names: Mapping[str, str]) -> set[str]:
    """Return the modules among `names` that `source` imports, the packages around them excluded."""
    found = set()
    for module, member in _IMPORTS.findall(source):
        name = f"{module}.{member}"
        while name and name not in names:
            name = name.rpartition(".")[0]
        found.add(name or module)
    return found


def _closure(name: str, imports: Mapping[str, set[str]]) -> set[str]:
    """Return `name` and all modules of the tests that it imports, directly or not."""
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        one = waiting.pop()
        if one not in seen and one.startswith("tests"):
            seen.add(one)
            waiting += imports.get(one, ())
    return seen
