"""Small faults that a test should notice, made one at a time.

Types, decorators, f-strings, log calls, `__str__`, asserts and the values of module-level constants
are not changed. A test that noticed a change there would only repeat the source.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

MAX_CONTEXT = 70
"""Characters of source that name a change; more only if the change itself is longer."""

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
NEGATED_OTHERWISE = (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Constant)

NOT_MUTATED = frozenset(
    {"annotation", "bases", "ctx", "decorator_list", "op", "ops", "pattern", "returns"}
)
"""Fields of the syntax tree that hold types, patterns, or what their parent's changes replace."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of one file. `function` and `text` name it, independently of its line.

    `lines` are those of the changed statement. `runs` is true if they run when the function is
    called (a default value does not). `scope` is the source of the function or class around.
    """

    file: str
    function: str
    text: str
    lines: range = field(compare=False)
    runs: bool = field(compare=False)
    scope: str = field(compare=False, repr=False)

    @property
    def name(self) -> str:
        """Its unique name within its file."""
        return f"{self.function}: {self.text}"

    @property
    def id(self) -> str:
        """Its unique name."""
        return f"{self.file}::{self.name}"


def mutations(file: str, source: str) -> list[Mutation]:
    """List every mutation of a module, in the order of its lines."""
    return [mutation for mutation, _ in _each(file, source)]


def mutated(mutation: Mutation, source: str) -> str:
    """Return the module's source with the mutation and without comments.

    Raises LookupError if `source` has no such mutation.
    """
    for found, tree in _each(mutation.file, source):
        if found == mutation:
            return ast.unparse(tree)
    raise LookupError(mutation.id)


def _each(file: str, source: str) -> Iterator[tuple[Mutation, ast.Module]]:
    """Make each mutation in the tree, yield it while it is in place, and undo it."""
    tree = ast.parse(source)
    seen: Counter[tuple[str, str]] = Counter()
    scopes: dict[ast.AST, str] = {}
    for place in list(_places(tree, (tree,))):
        for changed in place.changes():
            text = place.text(changed)
            seen[place.function, text] += 1
            if (count := seen[place.function, text]) > 1:
                text += f" #{count}"
            definition = place.definition
            if definition not in scopes:
                scopes[definition] = ast.unparse(definition)
            lines = place.lines
            mutation = Mutation(file, place.function, text, lines, place.runs, scopes[definition])
            place.put(changed)
            yield mutation, tree
            place.put(place.node)


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a node: a field of the last node in `trail`, and its index if that is a list."""

    trail: tuple[ast.AST, ...]
    name: str
    index: int | None
    node: ast.AST

    def put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.trail[-1], self.name, node)
        else:
            getattr(self.trail[-1], self.name)[self.index] = node

    def changes(self) -> Iterator[ast.AST]:
        node = self.node
        if isinstance(node, ast.stmt):
            if self.runs:
                yield from _statement_changes(node)
        elif isinstance(node, ast.expr):
            if self.name in {"test", "guard", "ifs"} and not isinstance(node, NEGATED_OTHERWISE):
                yield ast.UnaryOp(ast.Not(), node)
            yield from _expression_changes(node)

    @property
    def _statement(self) -> ast.stmt:
        return next(one for one in (self.node, *self.trail[::-1]) if isinstance(one, ast.stmt))

    @property
    def definition(self) -> ast.AST:
        """The enclosing function or class; the module if there is none."""
        return next((one for one in self.trail[::-1] if isinstance(one, Definition)), self.trail[0])

    @property
    def function(self) -> str:
        names = [one.name for one in self.trail if isinstance(one, Definition)]
        return ".".join(names) or "<module>"

    @property
    def runs(self) -> bool:
        inside = isinstance(self.definition, ast.FunctionDef | ast.AsyncFunctionDef)
        return inside and self._statement is not self.definition

    @property
    def lines(self) -> range:
        """The lines of the statement, or of its head if it has a body."""
        statement = self._statement
        body = getattr(statement, "body", None) or getattr(statement, "cases", None)
        if not body:
            return range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
        first = body[0].pattern if isinstance(body[0], ast.match_case) else body[0]
        return range(statement.lineno, max(first.lineno, statement.lineno + 1))

    def text(self, changed: ast.AST) -> str:
        """Describe the change, with some of the source around it."""
        if isinstance(changed, ast.Pass):
            return f"delete {_first_line(self.node)}"
        shown = self.node
        for outer in self.trail[::-1]:
            if isinstance(outer, ast.stmt) or not isinstance(shown, ast.expr):
                break
            if isinstance(outer, ast.expr) and len(ast.unparse(outer)) <= MAX_CONTEXT:
                shown = outer
        before = _first_line(shown)
        self.put(changed)
        after = _first_line(changed if shown is self.node else shown)
        self.put(self.node)
        return f"{before} → {after}"


def _first_line(node: ast.AST) -> str:
    return ast.unparse(node).partition("\n")[0]


def _places(parent: ast.AST, trail: tuple[ast.AST, ...]) -> Iterator[_Place]:
    for name, value in ast.iter_fields(parent):
        if name in NOT_MUTATED or (name == "keywords" and isinstance(parent, ast.ClassDef)):
            continue
        several = isinstance(value, list)
        for index, node in enumerate(value if several else [value]):
            if isinstance(node, ast.AST) and not _is_left_alone(node, parent):
                yield _Place(trail, name, index if several else None, node)
                yield from _places(node, (*trail, node))


def _is_left_alone(node: ast.AST, parent: ast.AST) -> bool:
    match node:
        case ast.JoinedStr() | ast.Assert():
            return True
        case ast.FunctionDef(name="__str__" | "__repr__"):
            return True
        case ast.Assign() | ast.AnnAssign():
            return isinstance(parent, ast.Module)
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Return(value=None) | ast.Return(value=ast.Constant(value=None)):
            return isinstance(parent, Definition) and node is parent.body[-1]
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="log")))):
            return True
    return False


def _statement_changes(node: ast.stmt) -> Iterator[ast.stmt]:
    match node:
        case ast.Return(value=None) | ast.Return(value=ast.Constant(value=None)):
            yield ast.Pass()
        case ast.Return():
            yield ast.Return(ast.Constant(None))
        case ast.AnnAssign(value=None) | ast.Expr(value=ast.Constant()):
            pass
        case ast.Expr() | ast.Assign() | ast.AnnAssign() | ast.Delete():
            yield ast.Pass()
        case ast.Raise() | ast.Continue() | ast.Break():
            yield ast.Pass()
        case ast.AugAssign(target=target, op=op, value=value):
            yield ast.Pass()
            if type(op) in ARITHMETIC:
                yield ast.AugAssign(target, ARITHMETIC[type(op)](), value)


def _expression_changes(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(left=left, ops=ops, comparators=right):
            for place, op in enumerate(ops):
                for other in COMPARISONS[type(op)]:
                    yield ast.Compare(left, [*ops[:place], other(), *ops[place + 1 :]], right)
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            for place in range(len(values)):
                rest = values[:place] + values[place + 1 :]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield ast.Constant(value + 1)
            yield ast.Constant(value - 1)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            if not any(_is_text(side) for side in (left, right)):
                yield ast.BinOp(left, ARITHMETIC[type(op)](), right)


def _is_text(node: ast.expr) -> bool:
    match node:
        case ast.JoinedStr() | ast.Constant(value=str() | bytes()):
            return True
    return False
