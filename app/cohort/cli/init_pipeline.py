"""The pipeline.yaml that `cohort init --pipeline` writes: a step for each model."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from cohort.cli import options

if TYPE_CHECKING:
    from cohort.pipelines import MemberFacts

HEAD = """\
#
# A model that consists of other models. A step's input is an input of the pipeline, as here, or an
# output of another step: step.output. With 'when: max(step.output) < 0.8', a step runs for some
# rows only. 'cohort check' finds mistakes.
"""


def write_pipeline(models: Path, name: str, members: Sequence[str]) -> None:
    """Write models/NAME/pipeline.yaml with a step for each of the `members`, which are model names.

    Its outputs are the outputs of all steps. Exits if a model cannot be read or the folder exists.
    Raises OSError.
    """
    from cohort.cli.editor_schemas import PIPELINE_SCHEMA, keep_schemas, schema_comment
    from cohort.errors import LoadFailed
    from cohort.pipelines import NotDeclared, facts_on_disk
    from cohort.repository import PIPELINE_FILE, VERSION_FILES, scan

    snapshot = scan(models, quiet=0, kinds=VERSION_FILES)
    try:
        known = {member: facts_on_disk(member, snapshot) for member in members}
    except (LoadFailed, NotDeclared) as error:
        options.fail(str(error))
    file = models / name / PIPELINE_FILE
    if name in snapshot.models:
        options.fail(f"{models / name} already exists: choose another name, or edit its files")
    keep_schemas(models)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("x", encoding="utf-8") as opened:
        opened.write(schema_comment(file, models, PIPELINE_SCHEMA) + HEAD + _text(known))
    click.echo(f"Wrote {file}: a step for each model.")


def _text(members: Mapping[str, MemberFacts]) -> str:
    """Return the inputs, steps and outputs as YAML."""
    taken = dict.fromkeys(one.name for facts in members.values() for one in facts.inputs)
    given = Counter(one.name for facts in members.values() for one in facts.outputs)
    steps, outputs = [], []
    for name, facts in members.items():
        step = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64]  # allowed in step names
        inputs = ", ".join(f"{_written(one.name)}: {_written(one.name)}" for one in facts.inputs)
        steps.append(f"  {_written(step)}: {{model: {_written(name)}, inputs: {{{inputs}}}}}")
        for spec in facts.outputs:
            output = spec.name if given[spec.name] == 1 else f"{step}_{spec.name}"
            outputs.append(f"  {_written(output)}: {{from: {_written(f'{step}.{spec.name}')}}}")
    named = [f"  {_written(name)}: {{}}" for name in taken]
    return "\n".join(["inputs:", *named, "steps:", *steps, "outputs:", *outputs, ""])


def _written(name: str) -> str:
    """Format a string as YAML, quoted if it could be read as another type."""
    plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", name)
    words = {"true", "false", "null", "yes", "no", "on", "off"}
    return name if plain and name.lower() not in words else json.dumps(name)
