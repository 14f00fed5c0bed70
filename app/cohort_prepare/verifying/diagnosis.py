"""Say what is behind a difference, where a simple test tells: only what fits all that was seen."""

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

MOST_CASES = 6
"""That are run again for each guess."""

GENERAL = (
    "check, in this order: is the model of the same training as the source (not another epoch or "
    "seed); is all of the preprocessing in it (convert the whole Pipeline, with its scaler and "
    "encoders, or do the same to its inputs); do its inputs have the same order and layout; was "
    "the source in evaluation mode when it was exported (model.eval())"
)


def diagnose(found: Verification, reference: RunCases, candidate: RunCases) -> list[str]:
    """Describe the difference: how far it goes first, then what is behind it and what to do."""
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
        lambda: find_input_mistake(off[:MOST_CASES], candidate, found.allowed),
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
            f"it agrees on {found.agreeing} of {found.cases} cases and is off on {far}, in "
            f"{found.rows_off} of {found.rows} rows"
        )
    return f"it is off on all {found.cases} cases, in {found.rows_off} of {found.rows} rows"


def _random(
    off: Sequence[ComparedCase], allowed: Allowed, reference: RunCases, candidate: RunCases
) -> str:
    inputs = next((one.case.inputs for one in off if one.got is not None), None)
    if inputs is None:
        return ""
    if not _repeats(candidate, inputs, allowed):
        return (
            "the model gives other outputs for the same inputs each time: dropout, "
            "BatchNormalization in training mode or something random is in it; export in "
            "evaluation mode (model.eval(), training=TrainingMode.EVAL)"
        )
    if not _repeats(reference, inputs, allowed):
        return (
            "the source gives other outputs for the same inputs each time: put it into evaluation "
            "mode (model.eval()) where it is loaded, or fix its seed"
        )
    return ""


def _missing(off: Sequence[ComparedCase]) -> str:
    """Only rows with NaN differ."""
    if any(one.case.purpose != "missing" for one in off):
        return ""
    return (
        "the two differ only where values are missing (NaN): an imputer was left out, or fills in "
        "another value, or trees send them to another side; convert the whole Pipeline, with its "
        "imputer, or replace missing values before the model is called"
    )


REPEATED = 8
"""Runs of the same inputs: an average that a training mode moves on may move slowly."""


def _repeats(run: RunCases, inputs: Arrays, allowed: Allowed) -> bool:
    first, *others = run([inputs] * REPEATED)
    return all(same_outputs(first, other, allowed) for other in others)


def _frozen_rows(judged: Sequence[ComparedCase]) -> str:
    """Batches of one size agree, those of all others do not."""
    agreeing = {one.case.rows for one in judged if one.agrees}
    failing = {one.case.rows for one in judged if not one.agrees}
    if len(agreeing) != 1 or not failing or agreeing & failing:
        return ""
    (size,) = agreeing
    sizes = ", ".join(map(str, sorted(failing)))
    refused = next((one.refused for one in judged if one.refused), "")
    how = f"fail ({refused})" if refused else "differ"
    return (
        f"batches of {size} agree, batches of {sizes} {how}: the batch axis was frozen at export; "
        "export with an open first dimension (dynamic_shapes, or dynamic_axes in the older "
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
        f"length {length} agrees, lengths {lengths} {how}: an open dimension was frozen at export; "
        "name it in dynamic_shapes (dynamic_axes in the older exporter), or give the model "
        f"a fixed length of {length}"
    )


def _rows_influence(off: Sequence[ComparedCase], allowed: Allowed, candidate: RunCases) -> str:
    """The model's rows depend on their neighbours, or on how many there are."""
    for one in off[:MOST_CASES]:
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
                "a row's outputs depend on the other rows of its batch, and the source's do not: "
                "BatchNormalization in training mode, a mean over the batch, or dynamic "
                "quantization; export in evaluation mode (model.eval()), or quantize statically"
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
                    f"({one.case.title}): numbers in between overflow, as those above 65504 do in "
                    "FP16; keep the layers concerned in FP32, use BF16, or scale the inputs"
                )
    return ""


INTEGER_LIMITS = (127, 255, 32767, 65535, 1 << 24, (1 << 31) - 1, (1 << 32) - 1)
"""The last whole number that a narrower datatype holds: INT8, UINT8, …, FP32, INT32, UINT32."""


def _narrow_integers(judged: Sequence[ComparedCase]) -> str:
    """All rows of small whole numbers agree, and only such with larger ones differ."""
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
                f"rows with whole numbers up to {small} agree, those with {large} and above "
                f"differ: they are cut to a narrower datatype, which ends at {limit}; keep ids as "
                "INT64 in the model, without a cast"
            )
    return ""


def _refused(off: Sequence[ComparedCase]) -> str:
    refused = next((one for one in off if one.refused), None)
    if refused is None:
        return ""
    return (
        f"the model does not take what the source takes ({refused.case.title}): {refused.refused}"
    )


FAR = 10
"""In tolerances: a row between 1 and this is neither equal nor another result altogether."""


def _depends_on_values(judged: Sequence[ComparedCase]) -> str:
    """Among rows of ordinary size some agree and the rest is far off, with nothing in between."""
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
        f"the difference depends on the inputs' values (far off: {titles[:200]}): a branch that "
        "depends on values may have been frozen when the model was traced, which PyTorch's older "
        "exporter does without a word; export with torch.export (dynamo=True), write the branch as "
        "torch.where or torch.cond, and look for clipped or rounded values otherwise"
    )


def _all_kinds(judged: Sequence[ComparedCase], ordinary: Sequence[Flags]) -> bool:
    """Whether the source's outputs differ from row to row where the model agrees.

    Rows of one leaf of a tree, or whose probabilities are 0 and 1, agree with much.
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
    """The largest magnitude of each row's inputs."""
    sizes = np.zeros(one.case.rows)
    for array in one.case.inputs.values():
        if array.dtype.kind in "fiu" and array.ndim and len(array) == one.case.rows and array.size:
            numbers = np.abs(np.asarray(array, np.float64)).reshape(one.case.rows, -1)
            sizes = np.maximum(sizes, numbers.max(1))
    return sizes
