"""`cohort publish`."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from cohort.cli.frame import Report, progress, reporting, settings_of_environment
from cohort_prepare.cli.source_options import source_options, source_or_onnx

if TYPE_CHECKING:
    from cohort_prepare.publishing import Publication

_FILE = click.Path(path_type=Path)

PASSPHRASE = "COHORT_SIGNING_PASSPHRASE"  # noqa: S105 - the name of a variable


@click.command("publish")
@click.argument("model", type=_FILE)
@click.option("--name", required=True, metavar="NAME", help="Model name in the repository.")
@click.option(
    "--to",
    required=True,
    metavar="FOLDER",
    help="Models folder, or an address such as s3://bucket/models.",
)
@click.option(
    "--examples",
    type=_FILE,
    metavar="FILE.npz",
    help="Inputs by name, and expected outputs as output:NAME; default: generated. For language "
    "models: a .jsonl of {prompt or messages, max_tokens, answer}; default: none.",
)
@click.option(
    "--labels", type=_FILE, metavar="FILE.npy", help="Correct answer for each row of --examples."
)
@click.option("--source", help="Source model, to compare with as in 'cohort verify'.")
@source_options
@click.option("--optimize", is_flag=True, help="Run 'cohort optimize' first.")
@click.option(
    "--quantize",
    type=click.Choice(["auto", "dynamic", "static", "fp16", "int4"]),
    help="Then quantize with this recipe; auto: only if it pays.",
)
@click.option("--calibration", type=_FILE, help="Rows for --quantize; default: the examples.")
@click.option(
    "--sign",
    type=_FILE,
    metavar="KEY.pem",
    help="Private Ed25519 key for the signature, from 'openssl genpkey -algorithm ed25519'. Its "
    f"passphrase is prompted for, or read from {PASSPHRASE}.",
)
@reporting
def publish(
    model: Path,
    name: str,
    to: str,
    examples: Path | None,
    labels: Path | None,
    source: str | None,
    framework: str | None,
    trust_pickle: bool,
    weights: str | None,
    python: str | None,
    packages: tuple[str, ...],
    optimize: bool,
    quantize: str | None,
    calibration: Path | None,
    sign: Path | None,
) -> Report:
    """Check MODEL and publish it as the next version of NAME in a models folder.

    The version has a manifest with digests, the steps applied to the model, and examples with
    outputs. Each server runs the examples before it sends traffic to the version. MODEL.md
    describes the model for people.

    Publishing is atomic and never overwrites files. Files that are published already get no new
    version; they are checked against the given examples and source.

    MODEL may be a pipeline.yaml, which is published with the files that it names, but not run. Or
    it is a genai_config.json, which is published with all files next to it.

    \b
    cohort publish model.onnx --name digits --to models/ --examples digits.npz
    cohort publish model.onnx --name digits --to models/ --sign publisher.key
    cohort publish models:/digits@champion --name digits --to s3://bucket/models
    """
    from cohort.inspection import InspectionLimits
    from cohort_prepare.failures import Misused
    from cohort_prepare.mlflow_models import onnx_on_disk
    from cohort_prepare.publishing import PublishRequest, load_signing_key, publish_model

    if labels is not None and examples is None:
        raise Misused("--labels needs --examples")
    if calibration is not None and quantize is None:
        raise Misused("--calibration needs --quantize")
    if source is None and (framework or trust_pickle or weights or python or packages):
        raise Misused("--from, --trust-pickle, --weights, --python and --with need --source")
    settings = settings_of_environment()
    key = None if sign is None else load_signing_key(sign, partial(_passphrase, sign))
    with progress() as shown:
        task = shown.add_task("Checking the model", total=None)

        def on_progress(line: str) -> None:
            shown.update(task, description=line)

        with ExitStack() as until_published:
            path = until_published.enter_context(onnx_on_disk(model, on_progress=on_progress))
            opened = source and until_published.enter_context(
                source_or_onnx(
                    source,
                    framework,
                    trust_pickle=trust_pickle,
                    weights=weights,
                    python=python,
                    packages=packages,
                    on_progress=on_progress,
                )
            )
            request = PublishRequest(
                path,
                name,
                to,
                examples=examples,
                labels=labels,
                source=opened or None,
                optimize=optimize,
                quantize=quantize,
                calibration=calibration,
                key=key,
                limits=InspectionLimits(settings.inspection_seconds, settings.inspection_mb),
            )
            made = publish_model(request, on_progress=on_progress)
    return Report(True, _findings(name, made), _lines(name, made))


def _passphrase(path: Path) -> str:
    from cohort_prepare.failures import Misused

    if PASSPHRASE in os.environ:
        return os.environ[PASSPHRASE]
    if not sys.stdin.isatty():
        raise Misused(f"{path} is encrypted: set {PASSPHRASE} to its passphrase")
    return str(click.prompt(f"Passphrase of {path}", hide_input=True, err=True))


def _findings(name: str, made: Publication) -> dict[str, object]:
    import json

    from cohort.repository import dump_manifest

    manifest = json.loads(dump_manifest(made.manifest))
    manifest["examples"] = len(made.manifest.examples)
    manifest["texts"] = len(made.manifest.texts)
    return {
        "model": name,
        "version": made.version,
        "place": made.place,
        "already": made.already,
        "signed_by": made.signer or None,
        "notes": list(made.notes),
        "manifest": manifest,
    }


def _lines(name: str, made: Publication) -> list[str]:
    from cohort.system.remote_address import is_remote

    if made.already:
        already = f"{made.place}: already published as version {made.version} of {name}"
        return [*made.notes, already]
    lines = list(made.notes)
    manifest = made.manifest
    if manifest.accuracy is not None:
        one = manifest.accuracy
        lines.append(f"Accuracy {one.after:.2%} on {one.rows:,} rows")
    if manifest.difference is not None:
        off = manifest.difference.max_absolute
        lines.append(
            f"Largest difference from its source: {off:.3g} on {manifest.difference.rows:,} rows"
        )
    if manifest.examples and not manifest.features:
        lines.append("Examples were generated; real requests are better (--examples)")
    signed = f", signed by {made.signer[:12]}" if made.signer else ""
    lines.append(f"{made.place}: version {made.version} of {name}{signed}")
    if not is_remote(made.place):
        lines.append(f"Serve it with: cohort serve {Path(made.place).parents[1]}")
    return lines
