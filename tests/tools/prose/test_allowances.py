"""Findings are allowed by exceptions with a reason, and by budgets that only go down."""

from __future__ import annotations

import pytest

from tools.prose.allowances import (
    Exceptional,
    lower_budget,
    over_budget,
    read_budget,
    read_exceptions,
    without_exceptions,
    write_budget,
)
from tools.prose.rules import Finding, Rule


def findings(**counts: int) -> list[Finding]:
    """Return as many findings in each file."""
    return [
        Finding(Rule.BANNED, path, line, "It holds\nup nobody.", "advice")
        for path, count in counts.items()
        for line in range(count)
    ]


def test_files_within_their_budget_pass() -> None:
    """A file over its budget shows all findings, since the new one is unknown."""
    found = findings(a=2, b=3, c=1)
    assert over_budget(found, {"a": 2, "b": 2}) == findings(b=3, c=1)
    assert over_budget(found, {"a": 3, "b": 3, "c": 1}) == []


def test_a_budget_goes_down_to_the_findings() -> None:
    """Files without findings leave it."""
    lowered = lower_budget({"a": 5, "b": 2}, findings(a=3), {"a", "b"})
    assert lowered == {"a": 3}


def test_a_budget_does_not_go_up() -> None:
    """Savings of other files raise neither an existing budget nor that of a new file."""
    with pytest.raises(ValueError, match=r"in a$"):
        lower_budget({"a": 1, "b": 9}, findings(a=2), {"a", "b"})
    with pytest.raises(ValueError, match=r"in c$"):
        lower_budget({"a": 9}, findings(a=1, c=1), {"a", "c"})


def test_a_renamed_file_takes_its_budget_along() -> None:
    """A file that was divided has the budget of the old one in all."""
    assert lower_budget({"a": 3}, findings(b=1, c=2), {"b", "c"}) == {"b": 1, "c": 2}
    with pytest.raises(ValueError, match=r"in b, c$"):
        lower_budget({"a": 3}, findings(b=2, c=2), {"b", "c"})


def test_a_budget_is_read_as_it_was_written() -> None:
    """Budgets are by path; of two lines that a merge left for a file, the lower number holds."""
    text = write_budget({"b": 2, "a": 10})
    assert text.endswith("\n10 a\n2 b\n")
    assert read_budget(text) == {"a": 10, "b": 2}
    assert read_budget("4 a\n3 a\n5 a\n") == {"a": 3}


def test_an_exception_covers_one_sentence_of_one_file() -> None:
    """One that covers nothing is returned, so that it is deleted."""
    exceptions = read_exceptions("a:\n  - {text: holds up nobody, why: a quotation}\n")
    assert exceptions == [Exceptional("a", "holds up nobody", "a quotation")]
    assert without_exceptions(findings(a=2, b=1), exceptions) == (findings(b=1), [])
    assert without_exceptions(findings(b=1), exceptions) == (findings(b=1), exceptions)


def test_an_exception_has_a_reason() -> None:
    """Without one it is refused; an empty file has no exceptions."""
    with pytest.raises(KeyError):
        read_exceptions("a:\n  - {text: holds up nobody}\n")
    assert read_exceptions("# Nothing yet.\n") == []
