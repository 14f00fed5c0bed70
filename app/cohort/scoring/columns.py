"""The columns of a table that a model's inputs read; other columns are kept and not read."""

from __future__ import annotations

from collections.abc import Sequence

from cohort.codec.tables import Place, is_wide
from cohort.errors import InvalidInput, did_you_mean, quoted, quoted_names
from cohort.tensors import TensorSpec

CHOOSE = "choose the model's columns, in its order, with --columns NAME,NAME"


def choose_places(
    names: Sequence[str],
    specs: Sequence[TensorSpec],
    chosen: Sequence[str] | None,
    *,
    lists: bool,
) -> Sequence[Place]:
    """Return the place of each input in a table with the columns `names`.

    specs: The inputs.
    chosen: The columns that the caller chose for the model, in its order; None: find them by name.
    lists: True if a value of the table may be a list, so that one column may be a whole input.

    Raises InvalidInput with the command's option that helps.
    """
    if chosen is not None:
        return _fit(_numbers(names, chosen), specs, lists)
    wanted = [spec.name for spec in specs]
    if {*wanted} <= {*names}:
        return _fit(_numbers(names, wanted), specs, lists)
    if len(specs) == 1 and specs[0].columns:
        return _fit(_numbers(names, specs[0].columns), specs, lists)
    if len(specs) > 1:
        return _fit(_numbers(names, wanted), specs, lists)
    width = _width(specs[0])
    if width not in (None, len(names)):
        raise InvalidInput(
            f"the model reads {width} columns, the file has {len(names)} "
            f"({quoted_names(names[:8])}): {CHOOSE}"
        )
    return _fit([*range(len(names))], specs, lists)


def _numbers(names: Sequence[str], wanted: Sequence[str]) -> list[int]:
    place_of = {name: place for place, name in enumerate(names)}
    for name in wanted:
        if name not in place_of:
            hint = did_you_mean(name, names)
            raise InvalidInput(f"the file has no column {quoted(name)}{hint}; {CHOOSE}")
    return [place_of[name] for name in wanted]


def _fit(numbers: list[int], specs: Sequence[TensorSpec], lists: bool) -> Sequence[Place]:
    if len(specs) > 1:
        if len(numbers) != len(specs):
            raise InvalidInput(
                f"--columns names {len(numbers)} columns, the model has {len(specs)} inputs"
            )
        return numbers
    (spec,) = specs
    width = _width(spec)
    if len(numbers) == 1 and (lists or not is_wide(spec) or width in (None, 1)):
        return numbers
    if width not in (None, len(numbers)):
        raise InvalidInput(f"the model reads {width} columns, not {len(numbers)}: {CHOOSE}")
    return [range(numbers[-1] + 1) if numbers == [*range(len(numbers))] else numbers]


def _width(spec: TensorSpec) -> int | None:
    """Return the columns of an input; None if it accepts any number."""
    shape = spec.shape
    if shape is None or len(shape) > 2:
        return None
    if len(shape) < 2:
        return 1
    return shape[1] if isinstance(shape[1], int) else None
