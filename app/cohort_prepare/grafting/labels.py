"""`add_labels`: class names in a model's metadata, where the server reads them.

A look-up in the graph would need another operator and an output of strings, which slow every run,
and which other servers do not understand. Metadata costs nothing, and callers get labels, `top`
and scores on every API.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cohort.profiling import find_trial
from cohort.session.declared_classes import declared_classes
from cohort_prepare.evaluating.cases import run_named
from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.finishing import scores_of, write_description
from cohort_prepare.grafting.grafted import Grafted, opened, write_grafted
from cohort_prepare.onnx_files import read_onnx, serving_options

ROWS_COMPARED = 3


def add_labels(before: Path, out: Path, *, labels: Path, output: str | None = None) -> Grafted:
    """Write the model with the labels of a file, one per line, for the columns of an output.

    output: Output with the scores; default None: the only float output with as many columns.

    Raises Misused for labels that do not fit, and Rejected if the model changed.
    """
    names = _read(labels)
    model = read_onnx(before)
    if output is None:
        output = scores_of(model, len(names))
    elif output not in {one.name for one in model.graph.output}:
        raise Misused(f"the model has no output {output!r}")
    known = dict(declared_classes({one.key: one.value for one in model.metadata_props}))
    classes = {**known, output: names}
    write_description(model, graph_name=model.graph.name, classes=classes)
    what = f"{len(names)} labels for {output}"
    write_grafted(model, before, out, "add_labels", what, {"labels": len(names), "output": output})
    options = serving_options(model)
    old, new = opened(before, options), opened(out, options)
    found = next((tuple(one.classes) for one in new.outputs if one.name == output), ())
    if found != names:
        raise Rejected(f"output {output} cannot have {len(names)} labels: its columns do not match")
    trial = find_trial(new.run, new.inputs)
    if not trial.problem:
        feeds = trial.feeds(ROWS_COMPARED)
        expected, got = run_named(old, feeds), run_named(new, feeds)
        if any(not np.array_equal(expected[name], got[name]) for name in expected):
            raise Rejected("the model's outputs changed")
    return Grafted(what, {"output": output, "labels": len(names)})


def _read(labels: Path) -> tuple[str, ...]:
    try:
        names = tuple(labels.read_text(encoding="utf-8-sig").split("\n"))
    except (OSError, UnicodeDecodeError) as error:
        raise Misused(f"{labels} cannot be read: {error}") from error
    while names and not names[-1].strip():
        names = names[:-1]
    if not names or not all(one.strip() for one in names):
        raise Misused(f"{labels} must have a label on each line")
    return names
