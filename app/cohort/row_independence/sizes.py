"""Symbolic sizes: polynomials over atoms, with integer coefficients.

A known size is a plain int. An atom is the number of rows, an open size of an input, or a
non-polynomial term such as a rounded quotient. Equal terms share one atom.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from operator import mul
from typing import Any

MAX_TERMS, MAX_DEGREE, MAX_ATOMS = 64, 16, 64
MAX_NUMBER = 1 << 62
"""Exclusive limit of coefficients; larger numbers may overflow in the model."""

NO_BOUND = float("-inf")


class Atom:
    """An unknown number.

    number: Its index among the atoms of the analysis.
    least: A lower bound of the value.
    whole: True if the value is known to be an integer.
    parts: All atoms that the value is computed from, including itself; None if there are too many.
    """

    __slots__ = ("least", "number", "parts", "whole")

    def __init__(
        self, number: int, least: float, parts: frozenset[Atom] | None, *, whole: bool
    ) -> None:
        self.number, self.least, self.whole = number, least, whole
        self.parts = None if parts is None else parts | {self}

    def __lt__(self, other: Atom) -> bool:
        return self.number < other.number

    def __repr__(self) -> str:
        return f"a{self.number}" if self.number else "N"


Monomial = tuple[Atom, ...]
"""A sorted product of atoms."""


class Symbols:
    """The atoms of one analysis. `rows` is the number of rows."""

    def __init__(self) -> None:
        self._count = 0
        self._atoms: dict[object, Poly] = {}
        self.rows = self.new(least=1)

    def new(
        self, least: float = 0, parts: frozenset[Atom] | None = frozenset(), *, whole: bool = True
    ) -> Poly:
        """Return a new atom that differs from all others."""
        atom = Atom(self._count, least, parts, whole=whole)
        self._count += 1
        return Poly({(atom,): 1}, self)

    def named(self, name: object) -> Poly:
        """Return the size of this name, which is at least 0."""
        if name not in self._atoms:
            self._atoms[name] = self.new()
        return self._atoms[name]

    def term(
        self, function: str, *given: object, least: float = NO_BOUND, whole: bool = True
    ) -> Poly:
        """Return an atom for the result of an opaque function of `given`."""
        key = (function, *given)
        if key not in self._atoms:
            parts: frozenset[Atom] | None = frozenset()
            for atom in (atom for one in given if isinstance(one, Poly) for atom in one.atoms()):
                parts = None if parts is None or atom.parts is None else parts | atom.parts
            if parts is not None and len(parts) > MAX_ATOMS:
                parts = None
            self._atoms[key] = self.new(least, parts, whole=whole)
        return self._atoms[key]


class Poly:
    """A polynomial that is not a plain number.

    Sums, differences and products are exact, or a new term if they grow too large.
    """

    __slots__ = ("_hash", "symbols", "terms")

    def __init__(self, terms: Mapping[Monomial, int], symbols: Symbols) -> None:
        self.terms, self.symbols = terms, symbols
        self._hash = hash(frozenset(terms.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Poly) and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __bool__(self) -> bool:
        raise TypeError("a size with symbols is neither true nor false")

    def __repr__(self) -> str:
        return "+".join(
            "*".join([str(factor), *map(repr, atoms)]) for atoms, factor in self.terms.items()
        )

    def atoms(self) -> Iterator[Atom]:
        """Yield the atoms; an atom may occur more than once."""
        for monomial in self.terms:
            yield from monomial

    def __add__(self, other: object) -> Size:
        if (terms := _terms(other)) is None:
            return self.symbols.term("add", self, other, whole=False)
        total = dict(self.terms)
        for monomial, factor in terms.items():
            total[monomial] = total.get(monomial, 0) + factor
        found = _size(total, self.symbols)
        return self.symbols.term("add", self, other) if found is None else found

    def __neg__(self) -> Poly:
        return Poly({monomial: -factor for monomial, factor in self.terms.items()}, self.symbols)

    def __sub__(self, other: Size) -> Size:
        return self + -other

    def __rsub__(self, other: Size) -> Size:
        return -self + other

    def __mul__(self, other: object) -> Size:
        if (terms := _terms(other)) is None:
            return self.symbols.term("mul", self, other, whole=False)
        total: dict[Monomial, int] = {}
        if len(self.terms) * len(terms) <= MAX_TERMS:
            for ours, factor in self.terms.items():
                for theirs, another in terms.items():
                    monomial = tuple(sorted(ours + theirs))
                    total[monomial] = total.get(monomial, 0) + factor * another
            if (found := _size(total, self.symbols)) is not None:
                return found
        return self.symbols.term("mul", *sorted((self, other), key=repr))

    __radd__ = __add__
    __rmul__ = __mul__


Size = int | Poly
"""The size of an axis, or another integer computed from sizes."""


def _terms(value: object) -> Mapping[Monomial, int] | None:
    match value:
        case Poly():
            return value.terms
        case int():
            return {(): int(value)} if value else {}
        case float() if value.is_integer() and abs(value) < MAX_NUMBER:
            return {(): int(value)} if value else {}
    return None


def _size(terms: Mapping[Monomial, int], symbols: Symbols) -> Size | None:
    """Return the size with these terms; None if they are too many or too large."""
    terms = {monomial: factor for monomial, factor in terms.items() if factor}
    if not terms:
        return 0
    if len(terms) > MAX_TERMS or any(
        len(monomial) > MAX_DEGREE or abs(factor) >= MAX_NUMBER
        for monomial, factor in terms.items()
    ):
        return None
    if len(terms) == 1 and () in terms:
        return terms[()]
    return Poly(terms, symbols)


def product(sizes: Iterable[Size]) -> Size:
    """Return the product of all sizes."""
    found: Size = 1
    for size in sizes:
        found = found * size
    return found


def of_rows(value: object) -> bool:
    """Return True if a size depends, or may depend, on the number of rows."""
    return isinstance(value, Poly) and made_of(value, frozenset(value.symbols.rows.atoms()))


def made_of(value: object, atoms: frozenset[Atom]) -> bool:
    """Return True if a size is, or may be, computed from one of these atoms."""
    return isinstance(value, Poly) and any(
        atom.parts is None or not atoms.isdisjoint(atom.parts) for atom in value.atoms()
    )


def is_whole(value: object) -> bool:
    """Return True if a value is known to be an integer."""
    if isinstance(value, Poly):
        return all(atom.whole for atom in value.atoms())
    return isinstance(value, int) or (isinstance(value, float) and value.is_integer())


def least(value: Any) -> float:
    """Return a lower bound of a size."""
    if not isinstance(value, Poly):
        return float(value)
    total = 0.0
    for monomial, factor in value.terms.items():
        if any(atom.least < 0 for atom in monomial) or (factor < 0 and monomial):
            return NO_BOUND
        total += factor * reduce(mul, (atom.least for atom in monomial), 1)
    return total


def compare_sizes(one: Any, other: Any) -> int | None:
    """Return -1 if `one` is less than `other`, 0 if equal, 1 if greater; None if unknown."""
    gap = one - other
    if not isinstance(gap, Poly):
        return int(gap > 0) - int(gap < 0)
    if least(gap) > 0:
        return 1
    return -1 if least(-gap) > 0 else None


def quotient(dividend: Size, divisor: Size) -> Size | None:
    """Return the exact quotient; None if the division has a remainder.

    Uses long division by the leading term.
    """
    if isinstance(dividend, int) and isinstance(divisor, int):
        return dividend // divisor if divisor and dividend % divisor == 0 else None
    symbols = next(one.symbols for one in (dividend, divisor) if isinstance(one, Poly))
    rest, by = dict(_terms(dividend) or {}), _terms(divisor) or {}
    if not by:
        return None
    lead = max(by, key=_order)
    found: dict[Monomial, int] = {}
    while rest and len(found) <= MAX_TERMS:
        highest = max(rest, key=_order)
        left = list(highest)
        for atom in lead:
            if atom not in left:
                return None
            left.remove(atom)
        if rest[highest] % by[lead]:
            return None
        factor = rest[highest] // by[lead]
        found[tuple(left)] = factor
        for monomial, other in by.items():
            key = tuple(sorted((*monomial, *left)))
            rest[key] = rest.get(key, 0) - factor * other
            if not rest[key]:
                del rest[key]
    return None if rest else _size(found, symbols)


def _order(monomial: Monomial) -> tuple[int, list[int]]:
    return len(monomial), [atom.number for atom in monomial]
