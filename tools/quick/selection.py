"""Select the tests that a change needs, from what imports what."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

STARTS_SERVERS = "tests.e2e.processes"
"""The test module that starts servers: tests that import it take seconds each."""

_IMPORTS = re.compile(
    r"^\s*(?:from|import)\s+((?:app|tests|tools)\b[\w.]*)(?:\s+import\s+(\w+))?", re.MULTILINE
)


def select_tests(changed: Iterable[str], sources: Mapping[str, str]) -> list[str]:
    """Return the test modules that a change needs, as paths.

    These are the changed test modules, those that import a changed helper of the tests, the tests
    of each changed package of `app` or `tools`, and the tests of the packages that import it.
    Tests that start servers are left out, except a changed package's own.

    changed: Paths of the changed files.
    sources: The text of each Python file of `app`, `tests` and `tools`, by its path.
    """
    names = {_name(path): path for path in sources}
    imports = {name: _imports(sources[path], names) for name, path in names.items()}
    tests = {name for name in names if _is_test(name)}
    reach = {test: _closure(test, imports) for test in tests}
    slow = {test for test in tests if STARTS_SERVERS in reach[test]}

    wanted: set[str] = set()
    for path in changed:
        if path not in sources:
            continue
        name = _name(path)
        package = _package(name)
        if _is_test(name):
            wanted.add(name)
        elif name.startswith("tests."):
            wanted |= {test for test in tests if name in reach[test]} - slow
        else:
            wanted |= _tests_of(package, tests)
            importers = {_package(one) for one in names if package in map(_package, imports[one])}
            for importer in importers - {"tests"}:
                wanted |= _tests_of(importer, tests) - slow
    return sorted(names[test] for test in wanted)


def _name(path: str) -> str:
    parts = PurePosixPath(path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _package(name: str) -> str:
    """`app.batching.queue` is of `app.batching`; all of tests is of `tests`."""
    top, _, rest = name.partition(".")
    return top if top == "tests" else f"{top}.{rest.partition('.')[0]}"


def _is_test(name: str) -> bool:
    return name.startswith("tests.") and name.rpartition(".")[2].startswith("test_")


def _tests_of(package: str, tests: set[str]) -> set[str]:
    """Tests of `app.errors` are `tests.errors.…` or `tests.test_errors`."""
    top, _, rest = package.partition(".")
    folder = f"tests.{rest}" if top == "app" else f"tests.tools.{rest}"
    return {test for test in tests if test.startswith(f"{folder}.") or test == f"tests.test_{rest}"}


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
