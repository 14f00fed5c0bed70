"""Pipelines: graphs of models that are served as one model, from `pipeline.yaml`.

`document` parses the file and `conditions` its conditions. `graph` sorts the steps, and `wiring`
checks their tensors against the models. `running` runs the steps of one request. It uses `progress`
to track tensors, `deciding` to select rows (with `rows` and `items`), and `step_run` to run a step.
`engine` leases the models, and `factory` opens versions.
"""

from cohort.pipelines.conditions import Condition, ConditionWrong, parse_condition
from cohort.pipelines.document import Pipeline, parse_pipeline
from cohort.pipelines.engine import PipelineEngine
from cohort.pipelines.factory import (
    PipelineEngines,
    asked_by_pipeline,
    files_named,
    read_pipeline,
)
from cohort.pipelines.graph import build_graph
from cohort.pipelines.on_disk import (
    NotDeclared,
    check_pipeline,
    facts_on_disk,
    members_named,
    notes_on,
)
from cohort.pipelines.steps import StepEnded
from cohort.pipelines.wiring import MemberFacts, Wiring, connect

__all__ = [
    "Condition",
    "ConditionWrong",
    "MemberFacts",
    "NotDeclared",
    "Pipeline",
    "PipelineEngine",
    "PipelineEngines",
    "StepEnded",
    "Wiring",
    "asked_by_pipeline",
    "build_graph",
    "check_pipeline",
    "connect",
    "facts_on_disk",
    "files_named",
    "members_named",
    "notes_on",
    "parse_condition",
    "parse_pipeline",
    "read_pipeline",
]
