"""A sandbox for chat templates, which come with models: bounded steps, sizes and time.

It has what templates of language models use; other filters and methods of strings are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from functools import wraps
from time import monotonic
from typing import Any, cast

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_STEPS = 200_000
"""Maximum iterations of loops, calls and filters in a template."""

MAX_SIZE = 1 << 22
"""Maximum characters of a text in a template, and of its output."""

ITEM = 32
"""Characters that an item of a list counts for."""

MAX_SECONDS = 1.0

MAX_BITS = 1 << 12
"""Maximum bits of a number."""

WIDE = re.compile(r"%[^%a-zA-Z]*(\d{4}|\*)")

FILTERS = (
    *("abs", "attr", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first"),
    *("float", "groupby", "indent", "int", "items", "join", "last", "length", "list", "lower"),
    *("map", "max", "min", "reject", "rejectattr", "replace", "reverse", "round", "safe"),
    *("select", "selectattr", "sort", "string", "title", "trim", "unique", "upper"),
)

TEXT_METHODS = frozenset(
    {
        *("capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha"),
        *("isascii", "isdecimal", "isdigit", "islower", "isnumeric", "isspace", "istitle"),
        *("isupper", "join", "lower", "lstrip", "partition", "removeprefix", "removesuffix"),
        *("replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "split", "splitlines"),
        *("startswith", "strip", "swapcase", "title", "upper"),
    }
)


class _Budget:
    """The steps and the time that are left to one rendering."""

    def __init__(self) -> None:
        self._steps = 0
        self._deadline = monotonic() + MAX_SECONDS

    def step(self) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise SecurityError(f"it takes more than {MAX_STEPS} steps")
        if monotonic() > self._deadline:
            raise SecurityError(f"it takes more than {MAX_SECONDS:g} s")


_budget: ContextVar[_Budget] = ContextVar("_budget")


def render_bounded(template: jinja2.Template, variables: Mapping[str, Any]) -> str:
    """Return the output of a template. Raises any error of the template."""
    token = _budget.set(_Budget())
    try:
        return joined(template.generate(variables))
    finally:
        _budget.reset(token)


def joined(parts: Iterable[str]) -> str:
    """Join texts. Raises SecurityError if they are too long."""
    kept, size = [], 0
    for part in parts:
        kept.append(part)
        size += len(part)
        if size > MAX_SIZE:
            raise _too_large()
    return "".join(kept)


def check_weight(*values: Any) -> None:
    """Raise SecurityError if the texts and items in `values` are too many."""
    left, found = MAX_SIZE, list(values)
    while found:
        value = found.pop()
        left -= ITEM
        if isinstance(value, str):
            left -= len(value)
        elif isinstance(value, Mapping):
            found += value.keys()
            found += value.values()
        elif isinstance(value, list | tuple | set | frozenset):
            found += value
        elif isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise _too_large()
        if left < 0 or len(found) * ITEM > MAX_SIZE:
            raise _too_large()


def _too_large() -> SecurityError:
    return SecurityError(f"it makes more than {MAX_SIZE >> 20} MiB of text, or too many items")


class ChatSandbox(ImmutableSandboxedEnvironment):
    """The environment of chat templates, set up as transformers does.

    https://huggingface.co/docs/transformers/chat_templating_writing
    """

    intercepted_binops = frozenset({"+", "*", "**", "%", "//", "/", "-"})
    concat = staticmethod(joined)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # which would run filters and calls when it compiles
            cache_size=0,
            finalize=_finalize,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        self.filters = {name: _counted(self.filters[name]) for name in FILTERS}
        self.filters["replace"] = _counted(_replace)
        self.filters["indent"] = _counted(_indent)
        self.filters["join"] = _counted(_join)
        self.filters["tojson"] = _counted(_tojson)
        self.filters["_each"] = _each
        self.filters["_weighed"] = _weighed
        self.filters["_joined"] = _joined
        self.globals = {
            "dict": dict,
            "namespace": self.globals["namespace"],
            "range": self.globals["range"],
            "raise_exception": _raise,
            "strftime_now": _strftime_now,
        }

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        bounded: nodes.Template = _Bounds().visit(tree)
        return bounded

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Count a call, and check the sizes of its arguments."""
        _budget.get().step()
        check_weight(args, kwargs)
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if isinstance(owner, str):
            check_weight(owner)
            if name == "replace":
                return _replace(owner, *args, **kwargs)
            if name == "join":
                return _join(args[0], owner)
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Compute an operation whose result could be large."""
        _budget.get().step()
        check_weight(left, right)
        sized = (str, list, tuple)
        if operator == "*" and (isinstance(left, sized) or isinstance(right, sized)):
            value, count = (left, right) if isinstance(left, sized) else (right, left)
            size = len(value) * (1 if isinstance(value, str) else ITEM)
            if isinstance(count, int) and size * count > MAX_SIZE:
                raise _too_large()
        elif operator == "**" and (abs(left) > 1 << 16 or abs(right) > 64):
            raise SecurityError("it computes a power that is too large")
        elif operator == "%" and isinstance(left, str) and WIDE.search(left):
            raise SecurityError("it formats a text with a width of four digits or more")
        result = super().call_binop(context, operator, left, right)
        check_weight(result)
        return result

    def wrap_str_format(self, value: Any) -> None:
        """Leave out `str.format`, which could pad to any width."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return True for methods whose results are about as long as their texts."""
        if isinstance(obj, str):
            return attr in TEXT_METHODS
        return not isinstance(obj, bytes) and super().is_safe_attribute(obj, attr, value)


class _Generation(Extension):
    """Leaves out `{% generation %}`, which marks answers for training."""

    tags = {"generation"}  # noqa: RUF012 - the library's type

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Bounds(NodeTransformer):
    """Passes what loops run over, comparisons and joined texts through checks."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802 - the library's name
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "_each")
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:  # noqa: N802
        self.generic_visit(node)
        node.expr = _filtered(node.expr, "_weighed")
        for operand in node.ops:
            operand.expr = _filtered(operand.expr, "_weighed")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), "_joined")


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(cast("nodes.Expr", node), name, [], [], None, None, lineno=node.lineno)


def _counted(filter_: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(filter_)
    def checked(*args: Any, **kwargs: Any) -> Any:
        _budget.get().step()
        check_weight(args, kwargs)
        return filter_(*args, **kwargs)

    return checked


def _each(values: Iterable[Any]) -> Iterable[Any]:
    if isinstance(values, jinja2.Undefined):
        return values
    if isinstance(values, list | tuple | dict | str | range):  # they have a length, as `loop` needs
        return _Counted(values)
    return (_step(value) for value in values)


class _Counted:
    """Values with a length, whose iterations count as steps."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Any]:
        return map(_step, self._values)


def _step(value: Any) -> Any:
    _budget.get().step()
    return value


def _weighed(value: Any) -> Any:
    check_weight(value)
    return value


def _joined(values: list[Any]) -> str:
    return joined(value if isinstance(value, str) else str(_weighed(value)) for value in values)


def _finalize(value: Any) -> Any:
    check_weight(value)
    return value


def _replace(value: Any, old: str, new: str, count: int | None = None) -> str:
    text = str(value)
    found = text.count(old) if count is None or count < 0 else min(text.count(old), count)
    if len(text) + found * len(new) > MAX_SIZE:
        raise _too_large()
    return text.replace(old, new, -1 if count is None else count)


def _join(values: Iterable[Any], separator: str = "", attribute: str | None = None) -> str:
    if attribute is not None:
        raise SecurityError("join with an attribute is not supported; use map before")
    texts = [value if isinstance(value, str) else str(_weighed(value)) for value in values]
    if len(separator) * len(texts) + sum(map(len, texts)) > MAX_SIZE:
        raise _too_large()
    return separator.join(texts)


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    prefix = width if isinstance(width, str) else " " * min(width, 80)
    if len(text) + len(prefix) * (text.count("\n") + 1) > MAX_SIZE:
        raise _too_large()
    lines = text.split("\n")
    return "\n".join(
        prefix + line if (place or first) and (line or blank) else line
        for place, line in enumerate(lines)
    )


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if isinstance(value, jinja2.Undefined):
        value = str(value)
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=None if indent is None else min(indent, 16),
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form[:200])
