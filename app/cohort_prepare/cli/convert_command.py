"""`cohort convert`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from cohort.cli.frame import Report, progress, reporting
from cohort_prepare.cli.source_options import source_options

if TYPE_CHECKING:
    from cohort.tensors import TensorSpec
    from cohort_prepare.converting import Converted


@click.command("convert")
@click.argument("source")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.onnx",
    help="The model to write; a file that is there is replaced once the new one is whole. May be "
    "left out for a config.pbtxt: then the file is written next to it.",
)
@click.option(
    "--example",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="INPUTS.npz",
    help="Rows to convert and compare with; the arrays' names become the inputs' names.",
)
@click.option(
    "--opset",
    type=click.IntRange(7, 26),
    metavar="NUMBER",
    help="The version of ONNX's operators; by default what the exporter does best.",
)
@source_options
@click.option(
    "--dynamic",
    multiple=True,
    metavar="INPUT:AXIS=NAME",
    help="Another open dimension of a PyTorch module's input, besides the rows: ids:1=length.",
)
@click.option(
    "--classes",
    metavar="NAMES",
    help="Names of the classes of its scores, written into its metadata: a file with one a line, "
    "or a,b,c.",
)
@click.option(
    "--verify/--no-verify",
    default=True,
    show_default=True,
    help="Run both models on the same rows before the new one is written.",
)
@reporting
def convert(
    source: str,
    out: Path | None,
    framework: str | None,
    example: Path | None,
    opset: int | None,
    trust_pickle: bool,
    python: str | None,
    packages: tuple[str, ...],
    verify: bool,
    dynamic: tuple[str, ...],
    classes: str | None,
    weights: str | None,
) -> Report:
    """Convert SOURCE, a model of a framework, to ONNX, and see that it gives the same.

    SOURCE is a file, a folder, module:callable, a function that gives the model, or
    models:/NAME/VERSION of MLflow. A framework that is not installed here is fetched into an
    environment of its own (by uv). Triton's config.pbtxt becomes a pipeline.yaml or config.yaml.

    \b
      cohort convert training:model --out models/churn/1/model.onnx
      cohort convert model.ubj --from xgboost --out model.onnx
      cohort convert model.joblib --trust-pickle --example rows.npz --out model.onnx
      cohort convert models/ensemble/config.pbtxt
    """
    if source.endswith(".pbtxt"):
        return _from_triton(Path(source), out)
    if out is None:
        raise click.UsageError("Missing option '--out': name the model to write")
    from cohort_prepare.converting import convert_source
    from cohort_prepare.detecting import open_source
    from cohort_prepare.evaluating.cases import read_cases
    from cohort_prepare.mlflow_models import source_on_disk

    cases = read_cases(example) if example else None
    with progress() as shown:
        task = shown.add_task("Converting", total=None)

        def say(line: str) -> None:
            shown.update(task, description=line)

        with (
            source_on_disk(source, framework, python=python, packages=packages, say=say) as (
                on_disk,
                known,
            ),
            open_source(
                on_disk,
                framework=known,
                trust_pickle=trust_pickle,
                weights=weights,
                python=python,
                packages=packages,
                say=say,
            ) as opened,
        ):
            made = convert_source(
                opened,
                out,
                example=(example, cases) if example and cases else None,
                opset=opset,
                verify=verify,
                dynamic=_open_axes(dynamic),
                labels=_read_classes(classes) if classes else (),
                say=say,
            )
    return Report(True, _findings(out, opened.framework.name, made), _lines(out, made))


def _from_triton(source: Path, out: Path | None) -> Report:
    from cohort_prepare.failures import Misused
    from cohort_prepare.triton.importing import import_config

    if out is not None and out.suffix == ".onnx":
        raise Misused(f"{source.name} has no model: name a pipeline.yaml or config.yaml by --out")
    made = import_config(source, out)
    lines = [f"Note: {note}" for note in made.notes]
    if made.out is None:
        first = f"No {made.kind} is needed: the model's file has all that {source} contains."
    else:
        first = f"Wrote {made.out}:\n\n{made.text}"
        lines.append(f"Once it is the {made.kind} of a model, 'cohort check' sees whether it fits.")
    findings = {"out": made.out and str(made.out), "text": made.text, "notes": made.notes}
    return Report(True, findings, [first, *lines])


def _read_classes(text: str) -> list[str]:
    """The names of classes in a file, one a line, or between commas."""
    file = Path(text)
    if file.is_file():
        names = [line.strip() for line in file.read_text("utf-8-sig").split("\n")]
        while names and not names[-1]:
            names.pop()
        return names
    names = [one.strip() for one in text.split(",")]
    if len(names) < 2:
        raise click.UsageError(f"--classes {text}: must be a file with one name a line, or a,b,c")
    return names


_OPEN_AXIS = re.compile(r"(?P<input>.+):(?P<axis>[0-9]{1,2})(=(?P<label>[A-Za-z_][A-Za-z0-9_]*))?")


def _open_axes(texts: Sequence[str]) -> dict[str, dict[str, str]]:
    """The labels of open dimensions by input and axis, as `--dynamic ids:1=length` says them."""
    found: dict[str, dict[str, str]] = {}
    for text in texts:
        match = _OPEN_AXIS.fullmatch(text)
        if match is None:
            raise click.UsageError(f"--dynamic {text}: must be INPUT:AXIS=NAME, as in ids:1=length")
        label = match["label"] or f"{match['input']}_{match['axis']}"
        found.setdefault(match["input"], {})[match["axis"]] = label
    return found


def _findings(out: Path, framework: str, made: Converted) -> dict[str, object]:
    difference = made.difference
    return {
        "out": str(out),
        "framework": framework,
        "what": made.export.what,
        "opset": made.opset,
        "inputs": [_spec(one) for one in made.inputs],
        "outputs": [_spec(one) for one in made.outputs],
        "classes": made.export.classes,
        "versions": made.export.versions,
        "notes": list(made.notes),
        "rows": made.rows,
        "difference": difference
        and {"max_absolute": difference.max_absolute, "max_relative": difference.max_relative},
        "beside": [str(path) for path in made.beside],
        "bytes": made.size,
        "sha256": made.sha256,
    }


def _spec(spec: TensorSpec) -> dict[str, object]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": spec.shape}


def _lines(out: Path, made: Converted) -> list[str]:
    def words(specs: object) -> str:
        return ", ".join(f"{one.name} {one.datatype} {one.shape_text}" for one in specs)  # type: ignore[attr-defined]

    lines = [
        f"Wrote {out}: {made.export.what}, opset {made.opset}, {made.size:,} bytes.",
        f"inputs   {words(made.inputs)}",
        f"outputs  {words(made.outputs)}",
    ]
    if made.beside:
        lines.append(f"Beside it: {', '.join(path.name for path in made.beside)}.")
    if made.difference is None:
        lines.append("Not compared with its source: 'cohort verify' does.")
    else:
        lines.append(
            f"Compared with its source on {made.rows} rows: off by "
            f"{made.difference.max_absolute:.2g} at most."
        )
    lines += [f"Note: {note}" for note in made.notes]
    if any(path.name.endswith("config.yaml") for path in made.beside):
        return lines  # which has them already
    for output, classes in list(made.export.classes.items())[:1]:
        lines += [
            f"It names {len(classes)} classes. In its model's config.yaml these two lines have "
            "each answer say the best one:",
            "outputs:",
            f"  {json.dumps(output)}: {{labels: metadata}}",
        ]
    return lines
