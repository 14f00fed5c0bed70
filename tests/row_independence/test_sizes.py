"""Sizes with symbols: what is computed with them is what numbers give."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from operator import add, mul, sub

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort.row_independence.sizes import (
    NO_BOUND,
    Poly,
    Size,
    Symbols,
    compare_sizes,
    is_whole,
    least,
    made_of,
    of_rows,
    quotient,
)
from tests.examples import examples

Formula = tuple[str, object, object] | int
"""A small number, the symbol of this number, or an operation on two formulas."""

LETTERS = 4
OPERATIONS: dict[str, Callable[[Size, Size], Size]] = {"+": add, "-": sub, "*": mul}

formulas = st.recursive(
    st.integers(-3, 3) | st.tuples(st.just("symbol"), st.integers(0, LETTERS - 1), st.none()),
    lambda inner: st.tuples(st.sampled_from("+-*"), inner, inner),
    max_leaves=6,
)
numbers = st.lists(st.integers(1, 7), min_size=LETTERS, max_size=LETTERS)


def compute(formula: object, letters: list[Size]) -> Size:
    match formula:
        case int():
            return formula
        case ("symbol", int(place), _):
            return letters[place]
        case (str(operation), one, other):
            return OPERATIONS[operation](compute(one, letters), compute(other, letters))
    raise AssertionError(formula)


def value(size: Size, symbols: list[Size], values: list[int]) -> int:
    """What a size is once its symbols are numbers."""
    if isinstance(size, int):
        return size
    known = {next(one.atoms()): number for one, number in zip(symbols, values, strict=True)}  # type: ignore[union-attr]
    return sum(
        factor * prod([known[atom] for atom in atoms]) for atoms, factor in size.terms.items()
    )


def letters() -> list[Size]:
    symbols = Symbols()
    return [symbols.rows, *(symbols.new(least=1) for _ in range(LETTERS - 1))]


@given(formulas, numbers)
@settings(max_examples=examples(200))
def test_arithmetic_is_that_of_numbers(formula: object, values: list[int]) -> None:
    """Sums, differences and products of symbols are those of the numbers they stand for."""
    symbols = letters()
    assert value(compute(formula, symbols), symbols, values) == compute(formula, list(values))


@given(formulas, formulas, numbers)
@settings(max_examples=examples(200))
def test_a_quotient_times_its_divisor_is_the_dividend(
    one: object, other: object, values: list[int]
) -> None:
    """This holds if the quotient is exact; and a product is divided by each of its factors."""
    symbols = letters()
    first, second = compute(one, symbols), compute(other, symbols)
    found = quotient(first, second)
    if found is not None:
        assert found * second == first
    if second != 0:
        assert quotient(first * second, second) == first
    assert quotient(first, 0) is None


@given(formulas, formulas, numbers)
@settings(max_examples=examples(200))
def test_bounds_and_comparisons_hold_for_all_numbers(
    one: object, other: object, values: list[int]
) -> None:
    """This holds for symbols that are at least 1."""
    symbols = letters()
    first, second = compute(one, symbols), compute(other, symbols)
    number, another = value(first, symbols, values), value(second, symbols, values)
    assert least(first) <= number
    if (order := compare_sizes(first, second)) is not None:
        assert order == (number > another) - (number < another)


def test_equal_terms_are_one_symbol() -> None:
    """Terms that are computed twice are known to be equal."""
    symbols = Symbols()
    size = symbols.named("length")
    assert symbols.named("length") == size
    assert symbols.term("div", size, 2) == symbols.term("div", size, 2)
    assert symbols.term("div", size, 2) != symbols.term("div", size, 3)


def test_what_is_computed_from_rows_is_known() -> None:
    """They are found through terms of terms; if there are too many to list, the answer is yes."""
    symbols = Symbols()
    rows, size = symbols.rows, symbols.new()
    term = symbols.term("f", symbols.term("g", rows * 2 + 1), size)
    assert of_rows(term)
    assert not of_rows(symbols.term("f", size))
    assert not of_rows(7)
    many: Size = 0
    for _ in range(63):
        many = many + symbols.new()
    unlisted = symbols.term("f", symbols.term("g", many), *(symbols.new() for _ in range(9)))
    assert of_rows(unlisted)
    assert made_of(unlisted, frozenset())


def test_sizes_stay_small() -> None:
    """Squared again and again, or added up for long, a size becomes a single term."""
    symbols = Symbols()
    size: Size = symbols.new() + symbols.new()
    for _ in range(40):
        size = size * size
        assert isinstance(size, Poly)
        assert len(size.terms) <= 64
    for _ in range(200):
        size = size + symbols.new()
        assert isinstance(size, Poly)
        assert len(size.terms) <= 64


@pytest.mark.parametrize("number", [2.5, float("nan"), float("inf"), 1e30])
def test_a_size_and_a_number_that_is_not_whole_are_a_term(number: float) -> None:
    """Only its parts are known of it."""
    size = Symbols().new()
    for found in (size + number, size * number):
        assert isinstance(found, Poly)
        assert not is_whole(found)
        assert least(found) == NO_BOUND
    assert size * 2.0 == size * 2
