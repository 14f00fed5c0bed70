"""Findings are allowed by exceptions with a reason."""

from __future__ import annotations

import pytest

from tools.prose.exceptions import Exceptional, read_exceptions, without_exceptions
from tools.prose.rules import Finding, Rule


def findings(**counts: int) -> list[Finding]:
    """Return as many findings in each file."""
    return [
        Finding(Rule.BANNED, path, line, "It holds\nup nobody.", "advice")
        for path, count in counts.items()
        for line in range(count)
    ]


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
