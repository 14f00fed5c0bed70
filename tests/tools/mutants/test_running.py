"""Mutants of a small project are run, each in a copy of it, and are found out or not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.mutants.mutations import mutated, mutations
from tools.mutants.running import Tree, context

FILE = "app/cohort/counting.py"
SOURCE = """
def count(numbers, most=3):
    found = 0
    while found < len(numbers) and found < most:
        found += 1
    return found


def unused(number):
    return number + 1
"""
TESTS = """
from cohort.counting import count

def test_counts():
    assert count([7]) == 1
    assert count([7, 8, 9]) == 3
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with a module and its test, nothing of it committed."""
    root = tmp_path / "project"
    for name, text in {
        "app/cohort/__init__.py": "",
        FILE: SOURCE,
        "tests/__init__.py": "",
        "tests/waiting.py": "",
        "tests/test_counting.py": TESTS,
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    return root


BECOMES = {
    "3 → 4": "survived",
    "found += 1 → found -= 1": "timeout",
    "return found → return None": "killed",
}


def test_mutants_are_killed_by_the_tests_that_reach_them(project: Path, tmp_path: Path) -> None:
    """Some fail a test, some never end, some survive; the project itself is not touched."""
    tree = Tree(project, tmp_path / "copy", context(["coverage", "pytest"]))
    baseline = tree.measure(["tests"])
    became = {}
    for mutation in mutations(FILE, SOURCE):
        tests = baseline.tests(FILE, mutation.lines, runs=mutation.runs)
        if mutation.function == "unused":
            assert not tests
        elif (expected := BECOMES.get(mutation.text)) is not None:
            order = baseline.in_order(tests)
            assert order == ["tests/test_counting.py::test_counts"]
            timeout = 5.0 if expected == "timeout" else 300.0
            outcome = tree.run(FILE, mutated(mutation, SOURCE), order, timeout)
            became[mutation.text] = outcome
    assert became == BECOMES
    assert (project / FILE).read_text() == (tmp_path / "copy" / FILE).read_text() == SOURCE


def test_tests_that_fail_without_a_mutant_are_an_error(project: Path, tmp_path: Path) -> None:
    """Tests that fail without a mutant are an error: they would kill every mutant."""
    (project / "tests/test_counting.py").write_text("def test_fails():\n    assert 1 == 2\n")
    with pytest.raises(RuntimeError, match="test_fails"):
        Tree(project, tmp_path / "copy", context(["coverage", "pytest"])).measure(["tests"])
