"""Describe everything in a model's files, and draw its graph."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import onnx

from cohort_prepare.overview import drawing
from cohort_prepare.overview.costs import count_flops
from cohort_prepare.overview.parts import MAX_LISTED, Flops, ModelStructure, clip
from cohort_prepare.overview.reading import (
    count_operators,
    opset_versions,
    read_inputs,
    read_light,
    read_outputs,
    summarize_graph,
)
from cohort_prepare.overview.shapes import Lengths, with_lengths
from cohort_prepare.steps import STEPS, read_steps


def structure_of(path: Path, job: Mapping[str, Any]) -> ModelStructure:
    """Describe the model at `path`; draw it if the job has a page."""
    model, parameters = read_light(path)
    inferred, left_open = with_lengths(model, Lengths(job["batch"], job["dimensions"]))
    drawn = ""
    if job["page"]:
        drawn = drawing.draw(inferred, job, Path(job["page"]))
    return ModelStructure(
        ir_version=model.ir_version,
        opsets=opset_versions(model),
        producer=clip(model.producer_name),
        producer_version=clip(model.producer_version),
        domain=clip(model.domain),
        description=clip(model.doc_string),
        graph=summarize_graph(model),
        inputs=read_inputs(model.graph),
        outputs=read_outputs(model.graph),
        operators=count_operators(model),
        parameters=parameters,
        flops=_flops(inferred, left_open, job),
        metadata={
            clip(one.key): clip(one.value)
            for one in islice(model.metadata_props, MAX_LISTED)
            if one.key != STEPS
        },
        history=read_steps(model),
        drawn=drawn,
    )


def _flops(inferred: onnx.ModelProto, left_open: list[str], job: Mapping[str, Any]) -> Flops:
    count = count_flops(inferred.graph)
    return Flops(
        total=count.total,
        batch=job["batch"],
        dimensions=job["dimensions"],
        open=[clip(name) for name in left_open[:MAX_LISTED]],
        operators=count.by_operator(),
        uncounted=count.left_out()[:MAX_LISTED],
        notes=list(count.notes),
    )
