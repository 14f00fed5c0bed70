"""The result of a run of the whole suite, as a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx
import onnxruntime

from tests.onnx_models import ELEMENT_TYPES
from tools.conformance.exceptions import Excepted, Result
from tools.conformance.suite import Case

# https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol#tensor-data-types
STANDARD = {
    *("BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"),
    *("FP16", "BF16", "FP32", "FP64", "BYTES"),
}
_NUMBERS = {ELEMENT_TYPES[name] for name in STANDARD}

LEAST = {"V2 binary": 1668, "V2 JSON": 1518, "gRPC": 1518}
"""The minimum number of cases that each form must pass."""


@dataclass(frozen=True)
class Run:
    """A run of the suite: all cases, those that pass in process, and the results of the latter."""

    cases: Sequence[Case]
    passing: Sequence[Case]
    results: Sequence[Result]

    @property
    def asked(self) -> list[Case]:
        """The cases that can be sent over the wire."""
        return [case for case in self.passing if case.only_tensors]

    def passed(self, form: str) -> set[str]:
        """Return the names of the cases that passed in a form."""
        return {one.case for one in self.results if one.form == form and not one.problem}


def too_few(run: Run) -> list[str]:
    """List the forms that pass fewer cases than they must."""
    return [
        f"{form} passes {len(run.passed(form))} cases, of {least} at least"
        for form, least in LEAST.items()
        if len(run.passed(form)) < least
    ]


def page(run: Run, exceptions: Iterable[Excepted]) -> str:
    """Return the text of the page docs/reports/conformance.md."""
    standard = {case.name for case in run.asked if case.element_types <= _NUMBERS}
    extension = {case.name for case in run.asked} - standard
    lines = [
        "# Conformance",
        "",
        "This page is the result of the ONNX standard's backend suite, sent over the wire.",
        "Each case is a model with inputs and the right outputs.",
        "A server process loads it with the default configuration, and gets requests in each form.",
        "The suite compares answers: the same shape and datatype, rtol 1e-3, atol 1e-7.",
        "",
        f"`make conformance` writes this page: onnx {onnx.__version__}, ONNX Runtime "
        f"{onnxruntime.__version__}, CPU provider.",
        "",
        "| | cases |",
        "|---|---:|",
        f"| in the suite | {len(run.cases)} |",
        f"| pass in process | {len(run.passing)} |",
        f"| and have only tensors in and out | {len(run.asked)} |",
        f"| … in Open Inference datatypes | {len(standard)} |",
        f"| … with FP8, INT4 or INT2, under extension names | {len(extension)} |",
        "",
        "| passed with | Open Inference datatypes | extension datatypes | together | excepted |",
        "|---|---:|---:|---:|---:|",
    ]
    for form in LEAST:
        passed = run.passed(form)
        lines.append(
            f"| {form} | {len(passed & standard)} | {len(passed & extension)} | {len(passed)} "
            f"| {len(run.asked) - len(passed)} |"
        )
    lines += [
        "",
        "Cases that ONNX Runtime fails in process are not sent.",
        "The reasons are a missing CPU kernel, training operators, or a missing locale.",
        "Sequences, maps and optionals are not "
        "[transportable](../contributing/decisions/0005-datatypes.md).",
        "",
        "## Exceptions",
        "",
        "`tools/conformance/exceptions.toml` lists the exceptions.",
        "The run fails if a listed case passes, or another one fails.",
        "",
        "| form | cases | reason |",
        "|---|---:|---|",
    ]
    lines += [f"| {', '.join(one.forms)} | {len(one.cases)} | {one.reason} |" for one in exceptions]
    return "\n".join([*lines, ""])
