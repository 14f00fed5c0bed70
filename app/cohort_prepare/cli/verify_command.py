"""`cohort verify`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click
from rich.table import Table

from cohort.cli.frame import Report, progress, reporting
from cohort_prepare.cli.source_options import source_options, source_or_onnx

if TYPE_CHECKING:
    from cohort_prepare.evaluating.accuracy import PairedAccuracy
    from cohort_prepare.verifying import Verification, Verified

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("verify")
@click.argument("source")
@click.argument("model", type=_FILE, metavar="MODEL.onnx")
@click.option(
    "--inputs",
    type=_FILE,
    metavar="INPUTS.npz",
    help="Rows to compare on, by input name; default: generated.",
)
@click.option(
    "--labels",
    type=_FILE,
    metavar="LABELS.npy",
    help="Correct answer for each row of --inputs; reports the accuracy of both models.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0, 10),
    metavar="SHARE",
    help="Allowed difference as a share of the row's largest value; default: 1e-4, more for FP16, "
    "BF16 and INT8.",
)
@click.option(
    "--plot",
    type=_FILE,
    metavar="FILE.png",
    help="Plot the model's values against the source's, and their differences.",
)
@click.option(
    "--worst",
    type=_FILE,
    metavar="FILE.npz",
    help="File for the inputs with the largest difference, if the models differ; default: "
    "MODEL.worst.npz next to the model.",
)
@source_options
@reporting
def verify(
    source: str,
    model: Path,
    inputs: Path | None,
    labels: Path | None,
    tolerance: float | None,
    plot: Path | None,
    worst: Path | None,
    framework: str | None,
    trust_pickle: bool,
    weights: str | None,
    python: str | None,
    packages: tuple[str, ...],
) -> Report:
    """Run SOURCE and MODEL.onnx on the same inputs, and report differences and likely causes.

    SOURCE is any source of 'cohort convert', including MLflow models, or an ONNX file, for example
    the model before a step.

    \b
    cohort verify training:model model.onnx
    cohort verify model.onnx small.onnx --inputs test.npz --labels test.npy
    cohort verify model.joblib model.onnx --trust-pickle --plot differences.png
    """
    from cohort_prepare.evaluating.cases import read_cases, read_labels
    from cohort_prepare.failures import Misused
    from cohort_prepare.verifying import draw_differences, verify_model, write_worst

    if not model.is_file():
        raise Misused(f"{model} {'is not a file' if model.exists() else 'not found'}")
    cases = read_cases(inputs) if inputs else None
    if labels and cases is None:
        raise Misused("--labels needs --inputs")
    answers = read_labels(labels, cases.rows) if labels and cases else None
    with progress() as shown:
        task = shown.add_task("Comparing", total=None)
        with source_or_onnx(
            source,
            framework,
            trust_pickle=trust_pickle,
            weights=weights,
            python=python,
            packages=packages,
            on_progress=lambda line: shown.update(task, description=line),
        ) as opened:
            shown.update(task, description="Comparing", total=cases.rows if cases else None)
            verified = verify_model(
                opened,
                model,
                inputs=(inputs, cases) if inputs and cases else None,
                labels=answers,
                tolerance=tolerance,
                seen=lambda one: shown.advance(task, one.case.rows),
            )
    found = verified.found
    findings = _findings(source, model, verified)
    lines = _lines(verified)
    if plot:
        draw_differences(found, plot)
        findings["plot"] = str(plot)
        lines.append(f"Wrote {plot}.")
    if not found.good and found.worst:
        path = worst or model.with_name(f"{model.stem}.worst.npz")
        title = write_worst(found, model, path)
        command = shlex.join(
            [
                *("cohort", "verify", source, str(model), "--inputs", str(path)),
                *(["--from", framework] if framework else []),
                *(["--trust-pickle"] if trust_pickle else []),
                *(["--weights", weights] if weights else []),
                *(["--python", python] if python else []),
                *(word for one in packages for word in ("--with", one)),
                *(["--tolerance", f"{tolerance:g}"] if tolerance is not None else []),
            ]
        )
        findings |= {"worst": str(path), "reproduce": command}
        lines += [f"The worst case ({title}) is in {path}; to reproduce it:", f"  {command}"]
    return Report(found.good, findings, lines)


def _findings(source: str, model: Path, verified: Verified) -> dict[str, object]:
    found = verified.found
    allowed = found.allowed
    return {
        "source": source,
        "model": str(model),
        "generated": verified.generated,
        "cases": found.cases,
        "cases_agreeing": found.agreeing,
        "rows": found.rows,
        "rows_off": found.rows_off,
        "tolerance": {
            "computation": allowed.computation,
            "share": allowed.share,
            "rows_off": allowed.rows_off,
            "by_decision": allowed.by_decision,
        },
        "outputs": [
            {
                "name": one.name,
                "model_name": one.matched,
                "datatype": one.datatype,
                "rows": one.rows,
                "rows_off": one.rows_off,
                "values": one.values,
                "unequal": one.unequal,
                "max_absolute": _finite(one.max_absolute),
                "max_relative": _finite(one.max_relative),
                "cosine": one.cosine,
                "argmax_agreement": one.argmax_agreement,
            }
            for one in found.outputs.values()
        ],
        "accuracy": _accuracy(verified.accuracy) if verified.accuracy else None,
        "problems": found.problems,
        "notes": list(found.notes),
        "skipped": [{"case": title, "reason": reason} for title, reason in found.skipped],
    }


def _finite(number: float | None) -> float | str | None:
    """Replace infinity by a string, since JSON has no infinity."""
    return "infinity" if number == float("inf") else number


def _accuracy(counted: PairedAccuracy) -> dict[str, object]:
    from cohort_prepare.evaluating.accuracy import interval

    return {
        "rows": counted.rows,
        "source": counted.before,
        "source_interval": interval(counted.before, counted.rows),
        "model": counted.after,
        "model_interval": interval(counted.after, counted.rows),
        "both_right": counted.both,
        "only_source_right": counted.lost,
        "only_model_right": counted.gained,
        "chance": counted.chance,
    }


def _lines(verified: Verified) -> list[str | Table]:
    found = verified.found
    kind = "generated" if verified.generated else "given"
    lines: list[str | Table] = []
    if found.outputs:
        lines.append(_table(found))
    if found.good:
        again = "" if verified.generated or found.cases < 3 else ", and on some of their rows alone"
        lines.append(f"The model agrees with its source on {found.cases} {kind} cases{again}.")
    else:
        lines += [f"The model differs from its source: {found.problems[0]}."]
        lines += [f"  {problem}." for problem in found.problems[1:]]
    lines.append(f"Tolerance for {found.allowed.text}.")
    if verified.accuracy:
        lines += _accuracy_lines(verified.accuracy)
    return [*lines, *(f"Note: {note}." for note in found.notes)]


def _accuracy_lines(counted: PairedAccuracy) -> list[str]:
    from cohort_prepare.evaluating.accuracy import interval

    shares = [
        f"{name} {share:.4f} ({low:.4f} to {high:.4f})"
        for name, share, (low, high) in (
            ("source", counted.before, interval(counted.before, counted.rows)),
            ("model", counted.after, interval(counted.after, counted.rows)),
        )
    ]
    return [
        f"Accuracy on {counted.rows} rows: {', '.join(shares)}.",
        f"Both right {counted.both}, only the source {counted.lost}, only the model "
        f"{counted.gained}, neither {counted.neither} (p-value {counted.chance:.2g}).",
    ]


def _table(found: Verification) -> Table:
    table = Table()
    for title in ("output", "datatype", "rows off", "max abs", "max rel", "cosine", "argmax"):
        table.add_column(title, justify="left" if title in {"output", "datatype"} else "right")
    for one in found.outputs.values():
        name = one.name if one.name == one.matched else f"{one.name} ({one.matched})"
        table.add_row(
            name.replace("[", "\\["),
            one.datatype,
            f"{one.rows_off} of {one.rows}",
            *(
                "" if value is None else f"{value:.3g}"
                for value in (one.max_absolute, one.max_relative)
            ),
            "" if one.cosine is None else f"{one.cosine:.6f}",
            "" if one.argmax_agreement is None else f"{one.argmax_agreement:.2%}",
        )
    return table
