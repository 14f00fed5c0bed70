"""Proofs about requests of some sizes, if no proof covers all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as some
from onnx import numpy_helper

from cohort.model_file.graphs import ModelGraphs
from cohort.model_file.model import parse_model
from cohort.row_independence import (
    OutputRows,
    RequestKind,
    RowKind,
    RowVerdict,
    prove_for_requests,
    prove_rows,
)
from cohort.row_independence.by_request import MAX_REQUESTS
from cohort.tensors import Arrays

HEAD = '<ir_version: 10, opset_import: ["": 20]> asked'

BY_LENGTH = """(float[N, T] x) => (float[N, U] y)
{ s = Shape(x) length = Gather(s, one) short = Less(length, eight)
  y = If(short) <then_branch = shorter () => (float[N, U] a) { a = Softmax<axis = 0>(x) },
                else_branch = longer () => (float[N, U] b) { b = Relu(x) }> }"""

WEIGHTS = {"one": np.array(1), "zero": np.array(0), "eight": np.array(8), "flat": np.array([-1])}


def graphs(text: str) -> ModelGraphs:
    model = onnx.parser.parse_model(f"{HEAD} {text}")
    model.graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in WEIGHTS.items()
    )
    return parse_model(memoryview(model.SerializeToString()), 10**19).graphs


def prove(text: str, *requests: Arrays) -> RowVerdict:
    model = graphs(text)
    return prove_for_requests(model, prove_rows(model), requests)


def of_length(length: int, rows: int = 1) -> Arrays:
    return {"x": np.zeros((rows, length), np.float32)}


def test_requests_of_proven_sizes_are_named() -> None:
    """They are named once for all examples of the same sizes, with any number of rows."""
    verdict = prove(BY_LENGTH, of_length(4), of_length(9), of_length(9, rows=3), of_length(8))
    assert verdict.kind is RowKind.PROVEN
    assert verdict.requests == (RequestKind({"x": (1, 9)}), RequestKind({"x": (1, 8)}))
    assert str(verdict) == (
        "rows do not influence each other in requests of these sizes only: 'x' [1, 9] or 'x' [1, 8]"
    )
    (other,) = verdict.other_requests
    assert other.startswith("example 1: rows may influence each other; Softmax")


def test_nothing_more_is_known_of_other_sizes() -> None:
    """The verdict stays that on all requests, with the node that combines rows."""
    for requests in ([], [of_length(4)], [{"other": np.zeros(3)}]):
        verdict = prove(BY_LENGTH, *requests)
        assert (verdict.kind, verdict.requests) == (RowKind.REFUTED, ())
        assert verdict.node.startswith("Softmax")


@pytest.mark.parametrize("body", ["y = Relu(x)", "y = Softmax<axis = 0>(x)"])
def test_what_no_size_changes_is_not_asked_again(body: str) -> None:
    """A model that is proven, or that mixes rows outside all branches."""
    model = graphs(f"(float[N, T] x) => (float[N, T] y) {{ {body} }}")
    known = prove_rows(model)
    assert prove_for_requests(model, known, [of_length(9)]) is known


def test_a_branch_is_looked_into_though_rows_elsewhere_mix_outside_it() -> None:
    """Of several guesses about the place of rows, another one may be reported."""
    beside = BY_LENGTH.replace("x)", "x, float[L, M] table)", 1).replace(
        "y = If", "low = ReduceMean<keepdims = 0>(table) y = If"
    ).replace("[N, U] y)", "[N, U] y, float low)", 1)  # fmt: skip
    table = np.ones((2, 2), np.float32)
    verdict = prove(beside, {**of_length(9), "table": table})
    assert verdict.kind is RowKind.SHARED
    assert verdict.inputs == {"x": 0, "table": None}


def test_values_that_a_run_takes_once_decide_too() -> None:
    """The verdict contains it: requests share a run if these are equal."""
    by_rate = """(float[N, T] x, int64 rate) => (float[N, T] y)
    { low = Equal(rate, eight)
      y = If(low) <then_branch = slow () => (float[N, T] a)
                    { most = ReduceMax<keepdims = 0>(x) a = Div(x, most) },
                  else_branch = fast () => (float[N, T] b) { b = Relu(x) }> }"""
    requests = [{**of_length(2), "rate": np.array(rate)} for rate in (8, 16)]
    verdict = prove(by_rate, *requests)
    assert verdict.kind is RowKind.SHARED
    assert verdict.requests == (RequestKind({"x": (1, 2), "rate": ()}, {"rate": (16,)}),)
    assert verdict.inputs == {"x": 0, "rate": None}
    assert str(verdict).endswith("only: 'x' [1, 2], 'rate' 16")


@pytest.mark.parametrize("shared", [np.zeros(1000), np.array("en", object)])
def test_large_values_and_texts_decide_nothing(shared: Any) -> None:
    """They are not followed, so requests with them are of no known kind."""
    kind = "string" if shared.dtype == object else "float[T]"
    asks = BY_LENGTH.replace("x)", f"x, {kind} all)", 1)
    assert prove(asks, {**of_length(9), "all": shared}).requests == ()


def test_entries_of_a_row_are_counted_where_their_number_depends_on_sizes() -> None:
    """A row of nine has nine entries of the flat output, one of ten has ten."""
    flat = BY_LENGTH.replace("Relu(x)", "Reshape(x, flat)").replace("[N, U] y", "[U] y")
    assert prove(flat, of_length(9)).outputs == {"y": OutputRows(0, 9)}
    assert prove(flat, of_length(9), of_length(10)).outputs == {"y": OutputRows(0, None)}


def test_a_bounded_number_of_requests_is_looked_at() -> None:
    """Each takes as long as the proof for all."""
    verdict = prove(BY_LENGTH, *map(of_length, range(8, 30)))
    assert len(verdict.requests) == MAX_REQUESTS
    assert verdict.other_requests == (f"examples after {MAX_REQUESTS} are not checked",)


@pytest.mark.parametrize(
    ("declared", "condition", "value"),
    [
        ("int64", "c = Cast<to = 6>(s) d = Cast<to = 7>(c) go = Equal(d, one)", 2**32 + 1),
        ("int64", "c = Cast<to = 2>(s) d = Cast<to = 7>(c) go = Equal(d, one)", 257),
        ("int32", "c = Mul(s, s) d = Cast<to = 7>(c) go = Equal(d, zero)", np.int32(65536)),
        ("int32", "c = Neg(s) d = Cast<to = 7>(c) go = Less(d, zero)", np.int32(-(2**31))),
        ("uint32", "c = Add(s, s) d = Cast<to = 7>(c) go = Equal(d, zero)", np.uint32(2**31)),
        ("int64", "c = Neg(one) d = Pow(s, c) go = Equal(d, zero)", 2),
        ("float", "c = Cast<to = 6>(s) d = Cast<to = 7>(c) go = Less(d, zero)", np.float32(3e9)),
        ("float", "c = Cast<to = 10>(s) d = Cast<to = 1>(c) go = Less(d, s)", 2049.0),
        ("float", "f = Cast<to = 1>(one) c = Min(f, s) d = Less(c, s) e = Equal(c, f) go = Not(e)",
         float("nan")),
        ("float", "c = Floor(s) d = Mul(c, c) e = Cast<to = 11>(d) f = Cast<to = 7>(e) "
         "g = Cast<to = 7>(s) h = Mul(g, g) k = Equal(f, h) go = Not(k)", 4097.0),
        ("float[3]", "c = ReduceSum<keepdims = 0>(s) d = Cast<to = 7>(c) go = Equal(d, zero)",
         [2.0**25, 1.0, -(2.0**25)]),
    ],
)  # fmt: skip
def test_what_a_type_does_not_hold_is_not_known(declared: str, condition: str, value: Any) -> None:
    """The runtime wraps or rounds it, and may take the branch that mixes rows."""
    text = f"""(float[N, T] x, {declared} s) => (float[N, T] y)
    {{ {condition}
      y = If(go) <then_branch = yes () => (float[N, T] a)
                   {{ most = ReduceMax<keepdims = 0>(x) a = Div(x, most) }},
                 else_branch = no () => (float[N, T] b) {{ b = Relu(x) }}> }}"""
    dtype = {"float": "f4", "float[3]": "f4"}.get(declared, declared)
    assert not prove(text, {**of_length(9), "s": np.array(value, dtype)}).independent


Decision = tuple[str, int, Any, Any] | bool
"""A branch by length or rate below a number, with its two outcomes; or True if rows mix."""

DECISIONS: some.SearchStrategy[Decision] = some.recursive(
    some.booleans(),
    lambda inner: some.tuples(
        some.sampled_from(["length", "rate"]), some.integers(1, 5), inner, inner
    ),
    max_leaves=6,
)


def mixes(decision: Decision, length: int, rate: int) -> bool:
    """Return True if rows of such a request mix."""
    while not isinstance(decision, bool):
        by, below, yes, no = decision
        decision = yes if {"length": length, "rate": rate}[by] < below else no
    return decision


def written(decision: Decision, names: Callable[[], str]) -> tuple[str, str]:
    """Return the nodes that decide so, and the name of their result."""
    y = names()
    if isinstance(decision, bool):
        most = names()
        mixing = f"{most} = ReduceMax<keepdims = 0>(x) {y} = Div(x, {most})"
        return mixing if decision else f"{y} = Relu(x)", y
    by, below, *ways = decision
    (yes, a), (no, b) = (written(one, names) for one in ways)
    number, low = names(), names()
    return (
        f"{number} = Constant<value_int = {below}>() {low} = Less({by}, {number}) "
        f"{y} = If({low}) <then_branch = {names()} () => (float[N, T] {a}) {{ {yes} }}, "
        f"else_branch = {names()} () => (float[N, T] {b}) {{ {no} }}>"
    ), y


@given(DECISIONS, some.lists(some.tuples(some.integers(1, 5), some.integers(1, 5)), max_size=6))
def test_just_those_requests_are_proven_whose_branches_do_not_mix(
    decision: Decision, asked: list[tuple[int, int]]
) -> None:
    """This holds for any deciding inputs in any order."""
    numbers: Iterator[int] = iter(range(1000))
    nodes, y = written(decision, lambda: f"n{next(numbers)}")
    text = f"""(float[N, T] x, int64 rate) => (float[N, T] {y})
    {{ s = Shape(x) length = Gather(s, one) {nodes} }}"""
    verdict = prove(
        text, *[{**of_length(length), "rate": np.array(rate)} for length, rate in asked]
    )
    if verdict.independent and not verdict.requests:
        expected = [(length, rate) for length in range(1, 6) for rate in range(1, 6)]
        assert not any(mixes(decision, *one) for one in expected)
        return
    right = {(length, rate) for length, rate in asked if not mixes(decision, length, rate)}
    found = {(one.shapes["x"][1], *one.values["rate"]) for one in verdict.requests}
    assert found == right
