"""The table of kernels that round a row by its run."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.profiling.exactness import RoundingKernel, instruction_set, kernels, rounding_kernels
from cohort.profiling.exactness.kernels import _table
from cohort.session import ORT_VERSION
from tools.rounding.__main__ import Kernel, try_case
from tools.rounding.sized_cases import SizedCase, sized_cases

BUILD = _table()[0]["runtime"], _table()[0]["instructions"]


def ways(named: dict[str, str]) -> list[tuple[str, str]]:
    found = rounding_kernels(named, several=False, build=BUILD)
    return [(one.kernel, one.by) for one in found]


def test_kernels_of_a_model_are_found_in_the_table() -> None:
    """Those that end within a vector, and those that add up in another way for a lone row."""
    assert ways({"Log (unaligned)": "Log 'x'"}) == [("Log (unaligned)", "place")]
    assert ways({"ReduceSum (inner axes)": "ReduceSum 'x'"}) == [
        ("ReduceSum (inner axes)", "alone")
    ]
    assert ways({"Log": "Log 'x'", "MatMul": "MatMul 'y'", "Conv": "Conv 'z'"}) == []


def test_the_worst_one_is_named_first_with_its_node() -> None:
    """The node is named as a person finds it in the graph."""
    both = {"Log (unaligned)": "Log 'a'", "ReduceSum (inner axes)": "ReduceSum 'b'"}
    first, second = rounding_kernels(both, several=False, build=BUILD)
    assert first.difference > second.difference
    assert str(first).startswith("ReduceSum 'b' rounds a row in another way when it is alone (up")
    assert str(second).startswith("Log 'a' rounds a row by its place in a run (up to ")


def test_a_kernel_that_was_not_tried_counts_as_the_worst_of_its_operator() -> None:
    """An untried kernel is not assumed to be exact."""
    assert ("Log (of something)", "place") in ways({"Log (of something)": "Log 'x'"})
    assert ways({"NeverHeardOf (unaligned)": "x"}) == []


def test_another_build_is_judged_by_all_that_are_known() -> None:
    """An untried release of ONNX Runtime is assumed to round no better than those before."""
    found = rounding_kernels(
        {"Log (unaligned)": "Log 'x'"}, several=False, build=("99.0", "avx1024")
    )
    assert [one.by for one in found] == ["place"]


def test_the_part_of_this_build_and_machine_counts_by_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Results of another build do not count here."""
    place = {"kernel": "Log", "by": "place", "threads": 1, "difference": 1e-7}
    here = {"runtime": ORT_VERSION, "instructions": instruction_set(), "tried": {"Log": 1}}
    parts = [{**here, "rounding": []}, {**here, "runtime": "1.0", "rounding": [place]}]
    monkeypatch.setattr(kernels, "_table", lambda: parts)
    log = {"Log": "Log 'x'"}
    assert rounding_kernels(log, several=False) == []
    assert len(rounding_kernels(log, several=False, build=("1.0", instruction_set()))) == 1


def test_several_threads_round_otherwise_than_one() -> None:
    """They share the work of one run, each from another place on."""
    one = rounding_kernels({"Log": "Log 'x'"}, several=False, build=BUILD)
    several = rounding_kernels({"Log": "Log 'x'"}, several=True, build=BUILD)
    assert ([each.by for each in one], [each.by for each in several]) == ([], ["place"])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("flags\t\t: fpu sse4_1 avx avx2 avx512f\n", "avx512f"),
        ("flags\t\t: fpu avx2\nflags\t\t: fpu avx2\n", "avx2"),
        ("Features\t: fp asimd\n", "asimd"),
        ("model name\t: avx2\n", ""),
    ],
)
def test_the_set_of_instructions_is_the_best_that_the_machine_has(
    tmp_path: Path, text: str, found: str
) -> None:
    """The names are those of Linux."""
    (tmp_path / "cpuinfo").write_text(text)
    assert instruction_set(tmp_path / "cpuinfo") == found
    assert instruction_set(tmp_path / "none") == ""


def case(operator: str, shape: tuple[int, ...]) -> SizedCase:
    return next(
        one for one in sized_cases() if one.operator == operator and tuple(one.shape) == shape
    )


@pytest.mark.parametrize(
    ("operator", "shape", "by"),
    [
        ("Log", (33,), {"place", "alone"}),
        ("Log", (16,), set()),
        ("MatMul", (33,), set()),
        ("LinearRegressor", (33,), {"alone"}),
    ],
)
def test_the_tool_sees_how_kernels_round_here(
    operator: str, shape: tuple[int, ...], by: set[str]
) -> None:
    """It runs ONNX Runtime itself on this machine, on one thread."""
    found_here: dict[str, Kernel] = {}
    tried = case(operator, shape)
    try_case(found_here, tried.model, tried.draw(32), {"x": 0}, operator)
    (found,) = found_here.values()
    assert {way for way, seen in found.seen.items() if 1 in seen} == by


def test_a_kernel_says_itself_where_no_model_is_at_hand() -> None:
    """The page with the table shows this text."""
    kernel = RoundingKernel("Log (unaligned)", "address", 2e-7)
    assert str(kernel) == (
        "Log (unaligned) rounds a row by where in memory its input is (up to 2e-07 of a value in "
        "other models)"
    )
