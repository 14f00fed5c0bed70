"""Graphs of models that answer as one: `pipeline.yaml`.

`document` reads the file, and `conditions` the conditions in it; `graph` puts the steps in order,
and `wiring` sees that their tensors fit the models. `running` takes one request through the steps:
`progress` is how far it is, `deciding` says for which rows a step runs, by `rows` and `items`, and
`step_run` runs one. `engine` leases the models, `factory` opens versions.
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
    NotTold,
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
    "NotTold",
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
