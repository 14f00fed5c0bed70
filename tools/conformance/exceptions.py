"""The committed list of cases that cannot pass, and the verdict on a run."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

LIST = Path(__file__).with_name("exceptions.toml")


@dataclass(frozen=True)
class Result:
    """The result of a case in one form; `problem` is empty if the answers were right."""

    case: str
    form: str
    problem: str


@dataclass(frozen=True)
class Excepted:
    """Cases that cannot pass in some forms, and why."""

    forms: tuple[str, ...]
    reason: str
    cases: tuple[str, ...]


def read_exceptions(path: Path = LIST) -> list[Excepted]:
    """Read the committed list."""
    return [
        Excepted(tuple(one["forms"]), one["reason"], tuple(one["cases"]))
        for one in tomllib.loads(path.read_text())["exception"]
    ]


def judge(results: Iterable[Result], exceptions: Iterable[Excepted]) -> list[str]:
    """List the failures that are not excepted and the exceptions that pass."""
    reasons: Mapping[tuple[str, str], str] = {
        (case, form): one.reason for one in exceptions for form in one.forms for case in one.cases
    }
    wrong = []
    for result in results:
        reason = reasons.get((result.case, result.form))
        if result.problem and reason is None:
            wrong.append(f"{result.case} over {result.form}: {result.problem}")
        elif reason is not None and not result.problem:
            wrong.append(f"{result.case} over {result.form} passes; it is listed: {reason}")
    return wrong


def unknown(
    exceptions: Iterable[Excepted], cases: Iterable[str], forms: Iterable[str]
) -> list[str]:
    """List the exceptions whose case or form does not exist or does not pass in process."""
    known, known_forms = set(cases), set(forms)
    listed = list(exceptions)
    return [
        *(f"no case {name} passes in process" for one in listed for name in one.cases
          if name not in known),
        *(f"there is no form {form}" for one in listed for form in one.forms
          if form not in known_forms),
    ]  # fmt: skip
