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
    type=click.Path(path_type=Path),
    metavar="FILE.onnx",
    help="ONNX file to write; an existing file is replaced at the end. For a language model: the "
    "version folder. Optional for a config.pbtxt: the result is then written next to it.",
)
@click.option(
    "--example",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="INPUTS.npz",
    help="Input rows for the export and comparison; array names become input names.",
)
@click.option(
    "--opset",
    type=click.IntRange(7, 26),
    metavar="NUMBER",
    help="ONNX opset version; default: the exporter's preferred one.",
)
@source_options
@click.option(
    "--dynamic",
    multiple=True,
    metavar="INPUT:AXIS=NAME",
    help="Variable dimension of a PyTorch input, in addition to rows, e.g. ids:1=length.",
)
@click.option(
    "--classes",
    metavar="NAMES",
    help="Class names to write into the metadata: a file with one name per line, or a,b,c.",
)
@click.option(
    "--precision",
    type=click.Choice(("fp32", "fp16", "int4")),
    help="Datatype of a language model's weights; default: fp32.",
)
@click.option(
    "--text",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.txt",
    help="Text on which a language model is compared with its source; default: a short one.",
)
@click.option(
    "--verify/--no-verify",
    default=True,
    show_default=True,
    help="Compare both models on the same rows before writing.",
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
    precision: str | None,
    text: Path | None,
) -> Report:
    """Convert SOURCE, a model of a framework, to ONNX, and check that it gives the same outputs.

    SOURCE is a file, a folder, module:callable (a function that returns the model), or
    models:/NAME/VERSION in MLflow. If its framework is not installed, uv creates a separate
    environment. Triton's config.pbtxt becomes a pipeline.yaml or config.yaml. A Hugging Face folder
    of a language model becomes a version folder that answers text.

    \b
    cohort convert training:model --out models/churn/1/model.onnx
    cohort convert model.ubj --from xgboost --out model.onnx
    cohort convert model.joblib --trust-pickle --example rows.npz --out model.onnx
    cohort convert models/ensemble/config.pbtxt
    cohort convert ./Llama-3.2-1B-Instruct --precision int4 --out models/chat/1
    """
    if source.endswith(".pbtxt"):
        return _from_triton(Path(source), out)
    if out is None:
        raise click.UsageError("Missing option '--out': the ONNX file to write")
    from cohort_prepare.cli.language_model_report import language_model_report, refuse_options
    from cohort_prepare.converting import convert_source
    from cohort_prepare.detecting import open_source
    from cohort_prepare.evaluating.cases import read_cases
    from cohort_prepare.language_models.converting import convert_language_model
    from cohort_prepare.mlflow_models import source_on_disk

    if precision or text:
        framework = framework or "generative"
    cases = read_cases(example) if example else None
    with progress() as shown:
        task = shown.add_task("Converting", total=None)

        def on_progress(line: str) -> None:
            shown.update(task, description=line)

        with (
            source_on_disk(
                source, framework, python=python, packages=packages, on_progress=on_progress
            ) as (
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
                on_progress=on_progress,
            ) as opened,
        ):
            if opened.framework.name == "generative":
                given = {"--example": example, "--opset": opset, "--dynamic": dynamic}
                refuse_options({**given, "--classes": classes, "--weights": weights})
                built = convert_language_model(
                    opened,
                    out,
                    precision=precision or "fp32",
                    text=text,
                    verify=verify,
                    on_progress=on_progress,
                )
                return language_model_report(built)
            if precision or text:
                raise click.UsageError(
                    f"--precision and --text are for language models, not for --from {framework}"
                )
            made = convert_source(
                opened,
                out,
                example=(example, cases) if example and cases else None,
                opset=opset,
                verify=verify,
                dynamic=_open_axes(dynamic),
                labels=_read_classes(classes) if classes else (),
                on_progress=on_progress,
            )
    return Report(True, _findings(out, opened.framework.name, made), _lines(out, made))


def _from_triton(source: Path, out: Path | None) -> Report:
    from cohort_prepare.failures import Misused
    from cohort_prepare.triton.importing import import_config

    if out is not None and out.suffix == ".onnx":
        raise Misused(f"{source.name} has no model: set --out to a pipeline.yaml or config.yaml")
    made = import_config(source, out)
    lines = [f"Note: {note}" for note in made.notes]
    if made.out is None:
        first = f"No {made.kind} is needed: the model file has everything in {source}."
    else:
        first = f"Wrote {made.out}:\n\n{made.text}"
        lines.append(f"'cohort check' validates it as the {made.kind} of a model.")
    findings = {"out": made.out and str(made.out), "text": made.text, "notes": made.notes}
    return Report(True, findings, [first, *lines])


def _read_classes(text: str) -> list[str]:
    """Read class names from a file, one per line, or from a comma-separated list."""
    file = Path(text)
    if file.is_file():
        names = [line.strip() for line in file.read_text("utf-8-sig").split("\n")]
        while names and not names[-1]:
            names.pop()
        return names
    names = [one.strip() for one in text.split(",")]
    if len(names) < 2:
        raise click.UsageError(f"--classes {text}: must be a file with one name per line, or a,b,c")
    return names


_OPEN_AXIS = re.compile(r"(?P<input>.+):(?P<axis>[0-9]{1,2})(=(?P<label>[A-Za-z_][A-Za-z0-9_]*))?")


def _open_axes(texts: Sequence[str]) -> dict[str, dict[str, str]]:
    """Parse `--dynamic ids:1=length` into labels of variable dimensions by input and axis."""
    found: dict[str, dict[str, str]] = {}
    for text in texts:
        match = _OPEN_AXIS.fullmatch(text)
        if match is None:
            raise click.UsageError(
                f"--dynamic {text}: must be INPUT:AXIS=NAME, for example ids:1=length"
            )
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
        lines.append(f"Also written: {', '.join(path.name for path in made.beside)}.")
    if made.difference is None:
        lines.append("Not compared with its source; use 'cohort verify'.")
    else:
        lines.append(
            f"Compared with its source on {made.rows} rows: largest difference "
            f"{made.difference.max_absolute:.2g}."
        )
    lines += [f"Note: {note}" for note in made.notes]
    if any(path.name.endswith("config.yaml") for path in made.beside):
        return lines  # the config has the labels
    for output, classes in list(made.export.classes.items())[:1]:
        lines += [
            f"It names {len(classes)} classes. Add these lines to the model's config.yaml "
            "to return the name of the best class:",
            "outputs:",
            f"  {json.dumps(output)}: {{labels: metadata}}",
        ]
    return lines
