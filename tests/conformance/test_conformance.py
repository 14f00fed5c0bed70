"""A spread-out sample of the ONNX backend suite over the wire; `make conformance` runs it all."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tools.conformance.exceptions import Excepted, Result, judge, read_exceptions, unknown
from tools.conformance.report import LEAST, Run, page, too_few
from tools.conformance.running import over_the_wire, problem_in_process
from tools.conformance.suite import Case, Sample, cases, difference

EVERY = 20


def test_sample_passes_over_the_wire(tmp_path: Path) -> None:
    """A case that passes in process passes in every form, unless the list has a reason."""
    some = [case for case in cases()[::EVERY] if case.only_tensors and not problem_in_process(case)]
    results = list(over_the_wire(some, tmp_path))
    assert len(results) == len(some) * len(LEAST)
    assert judge(results, read_exceptions()) == []


def test_exceptions_hold_what_json_cannot_say() -> None:
    """What is listed for its inputs does hold NaN or infinity there: no other excuse hides here."""
    by_name = {case.name: case for case in cases()}
    blamed = [one for one in read_exceptions() if one.reason.startswith("its inputs hold NaN")]
    assert blamed
    for one in blamed:
        assert one.forms == ("V2 JSON",)
        assert [name for name in one.cases if not any(map(_odd, by_name[name].samples()))] == []


def _odd(sample: Sample) -> bool:
    numbers = [value for value in sample.inputs.values() if value.dtype != object]
    return any(not np.isfinite(value.astype(np.float64)).all() for value in numbers)


def test_list_is_strict() -> None:
    """An unlisted failure is reported, and so is a listed case that passes."""
    listed = [Excepted(("V2 JSON",), "a reason", ("a", "b"))]
    results = [
        Result("a", "V2 JSON", "failed"),
        Result("a", "gRPC", "failed, too"),
        Result("b", "V2 JSON", ""),
        Result("c", "V2 JSON", ""),
    ]
    assert judge(results, listed) == [
        "a over gRPC: failed, too",
        "b over V2 JSON passes; it is listed: a reason",
    ]


def test_list_names_what_there_is() -> None:
    """A listed case that no longer exists, or an unknown form, is reported."""
    listed = [Excepted(("V2 JSON", "V3"), "a reason", ("a", "b"))]
    assert unknown(listed, ["a"], ["V2 JSON"]) == [
        "no case b passes in process",
        "there is no form V3",
    ]


def test_difference_is_the_suites() -> None:
    """Shape, datatype and values count, with the suite's tolerances; NaN equals NaN."""
    one = np.array([1.0, np.nan], "f4")
    assert difference(one, one * np.float32(1.0009)) == ""
    assert "values" in difference(one, one * np.float32(1.002))
    assert "float64" in difference(one, one.astype("f8"))
    assert "shape" in difference(one, one[None])
    assert difference([one], [one]) == ""
    assert "sequence" in difference([one], [])
    assert "texts" in difference(np.array(["a"], object), np.array(["b"], object))


def test_page_counts_and_too_few_are_told() -> None:
    """The page has a row per form, and a form that passes too little is an error."""
    case = Case("test_abs", next(one.model for one in cases() if one.name == "test_abs"))
    run = Run([case], [case], [Result("test_abs", "gRPC", ""), Result("test_abs", "V2 JSON", "no")])
    text = page(run, [Excepted(("V2 JSON",), "a reason", ("test_abs",))])
    assert "| gRPC | 1 | 0 | 1 | 0 |" in text
    assert "| V2 JSON | 0 | 0 | 0 | 1 |" in text
    assert "| V2 JSON | 1 | a reason |" in text
    assert len(too_few(run)) == len(LEAST)
