"""Mutants that a test should kill; their names do not depend on line numbers."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools import ROOT
from tools.mutants.mutations import Mutation, mutated, mutations
from tools.mutants.outcomes import Record, Records, digest, read_equivalent, unknown
from tools.mutants.packages import PACKAGES, modules
from tools.mutants.report import Result, page


def texts(source: str) -> list[str]:
    return [mutation.text for mutation in mutations("m.py", source)]


def in_function(*lines: str) -> str:
    return "\n    ".join(["def f(a, b):", *lines, "use()"])


@pytest.mark.parametrize(
    ("line", "made"),
    [
        ("g(a < b)", ["a <= b", "a >= b"]),
        ("g(a >= b)", ["a > b", "a < b"]),
        ("g(a == b)", ["a != b"]),
        ("g(a not in b)", ["a in b"]),
        ("g(a is None)", ["a is not None"]),
        ("g(a and b)", ["a or b", "b", "a"]),
        ("g(not a)", ["a"]),
        ("g(True)", ["False"]),
        ("g(a[1])", ["a[2]", "a[0]"]),
        ("g(a + b)", ["a - b"]),
        ("g(a // b)", ["a * b"]),
        ("g(-a)", ["a"]),
    ],
)
def test_an_expression_is_changed(line: str, made: list[str]) -> None:
    """Each change is named with its surroundings, after the call itself is left out."""
    changes = [text.partition(" → ")[2] for text in texts(in_function(line)) if " → " in text]
    assert changes == [f"g({one})" for one in made]


@pytest.mark.parametrize(
    ("line", "made"),
    [
        ("a.close()", "delete a.close()"),
        ("await a", "delete await a"),
        ("a = b", "delete a = b"),
        ("a += b", "a += b → a -= b"),
        ("raise a", "delete raise a"),
        ("return a", "return a → return None"),
        ("if a: return", "delete return"),
        ("for a in b: continue", "delete continue"),
        ("while a: break", "delete break"),
        ("if a: g()", "a → not a"),
        ("[c for c in b if c]", "[c for c in b if c] → [c for c in b if not c]"),
        ("g(a if b else c)", "g(a if b else c) → g(a if not b else c)"),
    ],
)
def test_a_statement_is_deleted_and_a_condition_turned(line: str, made: str) -> None:
    """This holds anywhere in a function."""
    assert made in texts(in_function(line))


@pytest.mark.parametrize(
    "source",
    [
        '"""A docstring of 1 line."""',
        "LIMIT = 16 * 1024",
        "LIMIT: int = 1",
        "if TYPE_CHECKING:\n    x = 1 < 2",
        "@lru_cache(256)\nclass A(B, slots=True):\n    x: Literal[1]",
        "def f(a: Literal[1]) -> Literal[2]:\n    '''Say.'''",
        "def f():\n    log.info('failed', count=1 + 1)",
        "def f():\n    assert a < b",
        "def __str__(self):\n    return self.a + self.b",
        "def f():\n    return None",
        "def f():\n    return",
    ],
)
def test_what_no_test_should_notice_is_left_alone(source: str) -> None:
    """Types, documentation, log lines, and numbers that are a choice."""
    assert texts(source) == []


def test_text_for_people_is_left_alone() -> None:
    """Sentences in an error may say anything; that it is raised may not change."""
    assert texts("def f():\n    raise E(f'{a + 1} MB')") == ["delete raise E(f'{a + 1} MB')"]
    assert texts("def f():\n    return f'{a}' + 'b'") == [
        "return f'{a}' + 'b' → return None",
    ]


def test_each_mutant_is_one_change_that_compiles() -> None:
    """The tree it is made in stays unchanged."""
    package = "app/cohort/batching"
    for file, source in modules(package).items():
        plain = ast.unparse(ast.parse(source))
        made = mutations(file, source)
        assert len({mutation.id for mutation in made}) == len(made)
        for mutation in made[:: len(made) // 5 + 1]:
            text = mutated(mutation, source)
            assert text != plain
            compile(text, file, "exec")


def test_a_mutant_keeps_its_name_when_lines_move() -> None:
    """What was declared equivalent stays so."""
    source = in_function("g(a < b)", "g(a < b)")
    moved = "import sys\n\n\n" + source
    assert mutations("m.py", source) == mutations("m.py", moved)
    assert "delete g(a < b) #2" in texts(source)


def test_a_mutant_that_cannot_be_made_is_an_error() -> None:
    """A mutant whose source has changed is an error."""
    (mutation, *_) = mutations("m.py", in_function("g()"))
    with pytest.raises(LookupError, match="delete g"):
        mutated(mutation, "def f(): h()")


@pytest.mark.parametrize(
    ("source", "lines", "runs"),
    [
        ("def f(a=1):\n    pass", range(1, 2), False),
        ("class A:\n    a = 1", range(2, 3), False),
        ("def f(a):\n    if (\n        a < 1):\n        pass", range(2, 4), True),
        ("def f(a):\n    g(\n        a)", range(2, 4), True),
    ],
)
def test_a_mutant_knows_the_lines_that_reach_it(source: str, lines: range, runs: bool) -> None:
    """The lines are those of its statement, without the body; a default runs at import."""
    mutation = mutations("m.py", source)[0]
    assert (mutation.lines, mutation.runs) == (lines, runs)


# --- What is kept


def record(mutation: Mutation, outcome: str, tests: str = "t") -> Record:
    return Record(mutation.id, outcome, digest(mutation.scope), tests, 1.0)


def test_what_is_known_is_not_run_again(tmp_path: Path) -> None:
    """A killed mutant stays until the function changes, a survivor until the tests do."""
    killed, survived, *_ = mutations("m.py", in_function("g(a < b)"))
    records = Records(tmp_path / "kept/outcomes.jsonl")
    records.add(record(survived, "killed"))
    records.add(record(killed, "killed"))
    records.add(record(survived, "survived"))
    for known in (records, Records(tmp_path / "kept/outcomes.jsonl")):
        assert known.get(killed, "other tests") == record(killed, "killed")
        assert known.get(survived, "t") == record(survived, "survived")
        assert known.get(survived, "other tests") is None
    changed = mutations("m.py", in_function("g(a < b)", "more()"))[0]
    assert changed == killed
    assert records.get(changed, "t") is None


def test_page_counts_what_was_run() -> None:
    """Equivalent ones do not count; they and those that survived are listed."""
    made = mutations("app/m.py", in_function("g(a < b)"))[:4]
    killed, survived, equivalent, left = made
    text = page(
        [
            Result(killed, record(killed, "timeout"), None),
            Result(survived, record(survived, "not reached"), None),
            Result(equivalent, None, "nobody sees it"),
            Result(left, None, None),
        ],
        seed="seed",
    )
    assert "| `app/m.py` | 4 | 1 | 2 | 1 | 1 | 50% |" in text
    assert f"- f: `{survived.text}`\n" in text
    assert f"- f: `{equivalent.text}` - nobody sees it\n" in text
    assert left.text not in text.partition("## Survived")[2]


def test_every_package_and_its_tests_are_there() -> None:
    """A package that moves takes its mutants with it."""
    for package, tests in PACKAGES.items():
        assert modules(package)
        assert all((ROOT / path).exists() for path in tests)


def test_equivalent_mutants_can_still_be_made() -> None:
    """A changed line loses its entry."""
    made = [
        mutation
        for package in PACKAGES
        for file, source in modules(package).items()
        for mutation in mutations(file, source)
    ]
    assert unknown(read_equivalent(), made) == []
