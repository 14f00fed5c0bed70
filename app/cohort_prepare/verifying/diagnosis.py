"""Find the cause of a difference by simple tests that must explain all cases."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from cohort.comparing import Flags, Numbers
from cohort.errors import quoted
from cohort.tensors import Arrays
from cohort_prepare.verifying.comparison import ComparedCase, RunCases, Verification
from cohort_prepare.verifying.input_mistakes import find_input_mistake
from cohort_prepare.verifying.output_mistakes import find_output_mistake, same_outputs
from cohort_prepare.verifying.tolerance import Allowed

MAX_CASES = 6
"""Maximum number of cases that are run again for each guess."""

GENERAL = (
    "check in this order. Is the model from the same training as the source (epoch, seed)? Does "
    "it include all preprocessing (convert the whole Pipeline with scaler and encoders, or apply "
    "it to the inputs)? Are the order and layout of its inputs the same? Was the source in "
    "evaluation mode at export (model.eval())?"
)


def diagnose(found: Verification, reference: RunCases, candidate: RunCases) -> list[str]:
    """Describe the extent of the difference, and its likely cause with a fix."""
    judged = [one for one in found.kept if one.counts]
    off = [one for one in judged if not one.agrees]
    summary = _summary(found)
    if not off:
        return [summary, GENERAL]
    guesses: tuple[Callable[[], str], ...] = (
        lambda: _random(off, found.allowed, reference, candidate),
        lambda: _missing(off),
        lambda: _frozen_rows(judged),
        lambda: _frozen_length(judged),
        lambda: find_output_mistake(judged, found.allowed),
        lambda: find_input_mistake(off[:MAX_CASES], candidate, found.allowed),
        lambda: _rows_influence(off, found.allowed, candidate),
        lambda: _overflow(off),
        lambda: _narrow_integers(judged),
        lambda: _refused(off),
        lambda: _depends_on_values(judged),
    )
    for guess in guesses:
        if reason := guess():
            return [summary, reason]
    return [summary, GENERAL]


def _summary(found: Verification) -> str:
    far = found.cases - found.agreeing
    if found.agreeing:
        return (
            f"it agrees on {found.agreeing} of {found.cases} cases and differs on {far}, in "
            f"{found.rows_off} of {found.rows} rows"
        )
    return f"it differs on all {found.cases} cases, in {found.rows_off} of {found.rows} rows"


def _random(
    off: Sequence[ComparedCase], allowed: Allowed, reference: RunCases, candidate: RunCases
) -> str:
    inputs = next((one.case.inputs for one in off if one.got is not None), None)
    if inputs is None:
        return ""
    if not _repeats(candidate, inputs, allowed):
        return (
            "the model's outputs change from run to run for the same inputs: it has dropout, "
            "BatchNormalization in training mode or random operators. Export in evaluation mode "
            "(model.eval(), training=TrainingMode.EVAL)"
        )
    if not _repeats(reference, inputs, allowed):
        return (
            "the source's outputs change from run to run for the same inputs: set evaluation mode "
            "(model.eval()) when it is loaded, or fix its seed"
        )
    return ""


def _missing(off: Sequence[ComparedCase]) -> str:
    """Test if only rows with NaN differ."""
    if any(one.case.purpose != "missing" for one in off):
        return ""
    return (
        "the two differ only for missing values (NaN): an imputer was omitted or fills in another "
        "value, or trees send them to another side. Convert the whole Pipeline with its imputer, "
        "or replace missing values before the model"
    )


REPEATED = 8
"""Runs of the same inputs: a running average of a training mode may change slowly."""


def _repeats(run: RunCases, inputs: Arrays, allowed: Allowed) -> bool:
    first, *others = run([inputs] * REPEATED)
    return all(same_outputs(first, other, allowed) for other in others)


def _frozen_rows(judged: Sequence[ComparedCase]) -> str:
    """Test if batches of one size agree, and those of all others differ."""
    agreeing = {one.case.rows for one in judged if one.agrees}
    failing = {one.case.rows for one in judged if not one.agrees}
    if len(agreeing) != 1 or not failing or agreeing & failing:
        return ""
    (size,) = agreeing
    sizes = ", ".join(map(str, sorted(failing)))
    refused = next((one.refused for one in judged if one.refused), "")
    how = f"fail ({refused})" if refused else "differ"
    return (
        f"batches of {size} agree, batches of {sizes} {how}: the batch axis was frozen at export. "
        "Export with a variable first dimension (dynamic_shapes, or dynamic_axes in the older "
        "exporter, and no fixed batch size in a reshape)"
    )


def _frozen_length(judged: Sequence[ComparedCase]) -> str:
    agreeing = {one.case.length for one in judged if one.agrees}
    failing = {one.case.length for one in judged if not one.agrees}
    if len(agreeing) != 1 or not failing or agreeing & failing or 0 in agreeing:
        return ""
    (length,) = agreeing
    lengths = ", ".join(map(str, sorted(failing)))
    refused = next((one.refused for one in judged if one.refused), "")
    how = f"fail ({refused})" if refused else "differ"
    return (
        f"length {length} agrees, lengths {lengths} {how}: a variable dimension was frozen at "
        "export. Name it in dynamic_shapes (dynamic_axes in the older exporter), or give the "
        f"model a fixed length of {length}"
    )


def _rows_influence(off: Sequence[ComparedCase], allowed: Allowed, candidate: RunCases) -> str:
    """Test if the model's rows depend on other rows of the batch, or on their number."""
    for one in off[:MAX_CASES]:
        rows, inputs = one.case.rows, one.case.inputs
        if rows < 2 or one.got is None or any(len(array) != rows for array in inputs.values()):
            continue
        singles = candidate(
            [{n: a[row : row + 1] for n, a in inputs.items()} for row in range(min(rows, 8))]
        )
        (together,) = candidate([{n: a[: len(singles)] for n, a in inputs.items()}])
        answers = [answer for answer in singles if not isinstance(answer, str)]
        if len(answers) < len(singles) or isinstance(together, str):
            continue
        if any(array.ndim == 0 or len(array) != len(singles) for array in together.values()):
            continue
        alone = {name: np.concatenate([each[name] for each in answers]) for name in together}
        if not same_outputs(alone, together, allowed):
            return (
                "a row's outputs depend on other rows of its batch, unlike the source's: "
                "BatchNormalization in training mode, a mean over the batch, or dynamic "
                "quantization. Export in evaluation mode (model.eval()), or quantize statically"
            )
    return ""


def _overflow(off: Sequence[ComparedCase]) -> str:
    for one in off:
        for name, expected in one.expected.items():
            got = (one.got or {}).get(name)
            if got is None or got.dtype.kind != "f" or expected.dtype.kind != "f":
                continue
            if np.isfinite(expected).all() and not np.isfinite(got).all():
                return (
                    f"output {quoted(name)} has NaN or infinity where the source has numbers "
                    f"({one.case.title}): intermediate values overflow, in FP16 above 65504. Keep "
                    "those layers in FP32, use BF16, or scale the inputs"
                )
    return ""


INTEGER_LIMITS = (127, 255, 32767, 65535, 1 << 24, (1 << 31) - 1, (1 << 32) - 1)
"""Maximum integers of narrower datatypes: INT8, UINT8, …, FP32, INT32, UINT32."""


def _narrow_integers(judged: Sequence[ComparedCase]) -> str:
    """Test if rows of small integers agree, and only rows with larger ones differ."""
    small, large = -1, None
    for one in judged:
        rows = one.case.rows
        numbers = [
            array.reshape(rows, -1)
            for array in one.case.inputs.values()
            if array.dtype.kind in "iu" and array.ndim and len(array) == rows and array.size
        ]
        if not numbers:
            return ""
        largest = np.max([each.max(1) for each in numbers], axis=0)
        for value, off in zip(largest.tolist(), one.rows_off.tolist(), strict=True):
            if off:
                large = value if large is None else min(large, value)
            else:
                small = max(small, value)
    for limit in INTEGER_LIMITS:
        if large is not None and 0 <= small <= limit < large:
            return (
                f"rows with integers up to {small} agree, those with {large} and above differ: "
                f"values are cast to a narrower datatype with maximum {limit}. Keep ids as INT64 "
                "in the model, without a cast"
            )
    return ""


def _refused(off: Sequence[ComparedCase]) -> str:
    refused = next((one for one in off if one.refused), None)
    if refused is None:
        return ""
    title = refused.case.title
    return f"the model rejects inputs that the source accepts ({title}): {refused.refused}"


FAR = 10
"""In tolerances: rows above this are clearly different, rows below 1 are equal."""


def _depends_on_values(judged: Sequence[ComparedCase]) -> str:
    """Test if rows of ordinary size are either equal or clearly different, with none between."""
    sizes = [_row_sizes(one) for one in judged]
    middle = float(np.median(np.concatenate(sizes)))
    ordinary = [(size > middle / 10) & (size < middle * 10) for size in sizes]
    ratios = np.concatenate(
        [one.ratios[those] for one, those in zip(judged, ordinary, strict=True)]
    )
    equal, far = np.count_nonzero(ratios <= 1), np.count_nonzero(ratios > FAR)
    if min(equal, far) < max(2, 0.05 * len(ratios)) or equal + far < 0.95 * len(ratios):
        return ""
    if not _all_kinds(judged, ordinary):
        return ""
    titles = ", ".join(one.case.title for one in judged if not one.agrees)
    return (
        f"the difference depends on the inputs' values (large for: {titles[:200]}): a branch on "
        "values may have been frozen by tracing, as in PyTorch's older exporter. Export "
        "with torch.export (dynamo=True), or write the branch as torch.where or torch.cond. Also "
        "check for clipped or rounded values"
    )


def _all_kinds(judged: Sequence[ComparedCase], ordinary: Sequence[Flags]) -> bool:
    """Return True if the source's outputs vary between the rows where the model agrees.

    Rows in one leaf of a tree, or with probabilities of 0 and 1, agree too easily.
    """
    rows = [
        np.asarray(array, np.float64).reshape(one.case.rows, -1)[those & ~one.rows_off]
        for one, those in zip(judged, ordinary, strict=True)
        for array in one.expected.values()
        if array.dtype.kind == "f" and array.ndim and len(array) == one.case.rows
    ]
    if len({each.shape[1] for each in rows}) != 1:
        return False
    rounded = np.round(np.concatenate(rows), 3)
    return len(np.unique(rounded, axis=0)) > 0.5 * len(rounded)


def _row_sizes(one: ComparedCase) -> Numbers:
    """Return the largest magnitude of each row's inputs."""
    sizes = np.zeros(one.case.rows)
    for array in one.case.inputs.values():
        if array.dtype.kind in "fiu" and array.ndim and len(array) == one.case.rows and array.size:
            numbers = np.abs(np.asarray(array, np.float64)).reshape(one.case.rows, -1)
            sizes = np.maximum(sizes, numbers.max(1))
    return sizes
