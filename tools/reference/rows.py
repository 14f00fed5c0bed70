"""The page of operators with a rule in the proof of row independence."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import wrap

from onnx import defs

from cohort.row_independence.operation import MICROSOFT, ML, OPERATOR_RULES
from tools import ROOT

TEMPLATE = ROOT / "tools" / "reference" / "row-independence.md"
WIDTH = 100
TITLES = {"": "ONNX", ML: "`ai.onnx.ml`", MICROSOFT: "`com.microsoft`, as found in files"}


def rows_page() -> str:
    """Return the text of the page."""
    ruled = {
        domain: sorted(name for there, name in OPERATOR_RULES if there == domain)
        for domain in TITLES
    }
    known = {(one.domain, one.name) for one in defs.get_all_schemas()}
    without = {
        domain: sorted(name for there, name in known - OPERATOR_RULES.keys() if there == domain)
        for domain in ("", ML)
    }
    text = TEMPLATE.read_text(encoding="utf-8")
    return text.replace("{with_rule}", _lists(ruled)).replace("{without_rule}", _lists(without))


def _lists(operators: dict[str, list[str]]) -> str:
    return "\n\n".join(
        f"**{TITLES[domain]}** ({len(names)}):\n\n```text\n{_names(names)}\n```"
        for domain, names in operators.items()
    )


def _names(names: Iterable[str]) -> str:
    return "\n".join(wrap(", ".join(names), WIDTH, break_long_words=False))
