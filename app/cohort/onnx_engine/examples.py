"""Example requests from a model's config and manifest, which are run at load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from cohort.batching import Key, RunFeeds
from cohort.codec import PredictRequest, decode_inputs, is_base64
from cohort.comparing import ROUNDING, Pair, explain
from cohort.errors import CohortError, InvalidInput, LoadFailed, quoted, quoted_names
from cohort.onnx_engine.example_files import read_example
from cohort.profiling import MAX_ROW_ELEMENTS, plan_rows, varied_array, why_unbatchable
from cohort.registry import Preparation
from cohort.repository import GivenExample, Manifest, ModelConfig
from cohort.session import Opener, Session
from cohort.tensors import Array, Arrays, TensorSpec, by_name, check_inputs

SHAPE_ONLY = "shape"
"""The key of an example's input that gives only its shape."""

MAX_TEXTS_MADE = 1 << 15
"""Maximum number of made-up texts; each takes 30 microseconds."""


def run_examples(
    opener: Opener,
    session: Session,
    run: RunFeeds,
    config: ModelConfig,
    manifest: Manifest | None,
    preparation: Preparation | None = None,
) -> list[Arrays]:
    """Run the examples of the config and of the manifest, and return their inputs.

    Examples of the config may be requests as callers send them; `preparation` turns these into the
    model's inputs.

    The session's proof of rows is extended to requests like the examples, unless the config sets
    `batching.trust`.

    Raises LoadFailed if one is invalid or fails, or if the outputs differ from the manifest's.
    """
    several, folder = len(config.example) > 1, opener.origin.parent
    given = [
        _run_example(
            session,
            run,
            example,
            f"example {number}" if several else "the example",
            folder,
            preparation,
        )
        for number, example in enumerate(config.example, 1)
    ]
    if manifest is not None:
        compare_examples(session, run, manifest)
        given += [one.input_arrays(session.inputs) for one in manifest.examples]
    trusted = config.batching.trust  # it applies to requests of all sizes
    session.rows = opener.prove_for([] if trusted else given)
    return given


MAX_TRIED = 2
"""Number of examples tried at load; the time of each grows with its rows."""


def examples_to_try(session: Session, examples: Sequence[Arrays]) -> list[Arrays]:
    """Return the examples that trial requests are modelled on.

    If only requests of some kinds may share runs, these are one example of each kind. Otherwise
    they are the first MAX_TRIED.
    """
    if not session.rows.requests or why_unbatchable(session.inputs, session.outputs, session.rows):
        return list(examples[:MAX_TRIED])
    stacking = plan_rows(session.inputs, session.outputs, session.rows)
    kinds: dict[Key, Arrays] = {}
    for one in examples:
        kinds.setdefault(stacking.rows_and_key(one)[1], one)
    kinds.pop(None, None)
    return list(kinds.values())


def compare_examples(session: Session, run: RunFeeds, manifest: Manifest) -> None:
    """Run the examples of a manifest. Raises LoadFailed if the outputs differ.

    On another provider than the one of publication, floats may also differ by ROUNDING: a GPU
    multiplies matrices with fewer bits.
    """
    active, measured = session.placement.active, manifest.measured_on
    elsewhere = measured is not None and measured.provider != active
    for number, example in enumerate(manifest.examples, 1):
        outputs = by_name(session.outputs, run(example.input_arrays(session.inputs)))
        mismatch = example.mismatch(outputs)
        if mismatch and elsewhere:
            mismatch = explain(Pair(example.outputs, outputs), ROUNDING)
        if mismatch:
            raise LoadFailed(
                f"example {number} of its manifest gives other outputs here, on {active}: "
                f"{mismatch}"
            )


def _run_example(
    session: Session,
    run: RunFeeds,
    example: GivenExample,
    called: str,
    folder: Path,
    preparation: Preparation | None,
) -> Arrays:
    made: Arrays = {}
    try:
        specs = {spec.name: spec for spec in session.inputs}
        prepared = None
        if preparation is not None and not isinstance(example, str):
            prepared = preparation.read(example)
        if prepared is not None:
            given = prepared
        elif isinstance(example, str):
            given = read_example(folder / example, session.inputs)
        else:
            made = {
                name: _of_shape(specs[name], value, session.tables)
                for name, value in example.items()
                if name in specs and _is_shape(specs[name], value)
            }
            given = decode_inputs(
                PredictRequest({n: value for n, value in example.items() if n not in made}),
                [spec for spec in session.inputs if spec.name not in made],
            )
        arrays = {name: made[name] if name in made else given[name] for name in specs}
        check_inputs(session.inputs, arrays)
        run(arrays)
    except (CohortError, ArithmeticError, TypeError, ValueError) as error:
        hint = (
            f" (with made-up values for {quoted_names(made)}: where a model takes certain values "
            "only, give those in place of the shape, such as sr: 16000)"
            if made
            else ""
        )
        raise LoadFailed(f"{called} of config.yaml: {error}{hint}") from error
    return arrays


def _is_shape(spec: TensorSpec, given: object) -> bool:
    """Return True if a shape is given, not values: a flat list is values only for one axis."""
    if isinstance(given, list) and spec.shape is not None and len(spec.shape) != 1:
        return len(given) == len(spec.shape) and all(type(size) is int for size in given)
    return isinstance(given, dict) and not is_base64(given)


def _of_shape(
    spec: TensorSpec, given: Mapping[str, Any] | Sequence[int], tables: Mapping[str, int]
) -> Array:
    """Make an input of the given shape with made-up values. Raises InvalidInput."""
    if isinstance(given, Mapping) and list(given) != [SHAPE_ONLY]:
        raise InvalidInput(
            f"input {quoted(spec.name)} needs values or {{{SHAPE_ONLY}: [1, 512]}}, got the keys "
            f"{quoted_names(given)}"
        )
    shape = given[SHAPE_ONLY] if isinstance(given, Mapping) else given
    if not isinstance(shape, list) or any(type(size) is not int or size < 0 for size in shape):
        raise InvalidInput(f"input {quoted(spec.name)}: shape must be a list such as [1, 512]")
    most = MAX_TEXTS_MADE if spec.datatype == "BYTES" else MAX_ROW_ELEMENTS
    if (count := prod(shape)) > most:
        raise InvalidInput(
            f"input {quoted(spec.name)} would have {count} elements; an example may have "
            f"{most}: use the sizes of a real request"
        )
    return varied_array(spec, shape, 0, tables)
