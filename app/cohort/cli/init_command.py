"""`cohort init`."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import rich_click as click

from cohort.cli import options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cohort.cli.init_files import InitFiles


@click.command("init", cls=options.settings_command("models"))
@click.argument("model")
@click.argument("file", required=False, type=click.Path(path_type=Path), metavar="[FILE.onnx]")
@click.option(
    "--version",
    "number",
    type=click.IntRange(1, 10**18 - 1),
    default=1,
    show_default=True,
    metavar="NUMBER",
    help="The version to make.",
)
@click.option(
    "--transform",
    is_flag=True,
    help="Write transform.py with a class of Python around the model, its test, and the key of "
    "config.yaml that names it.",
)
@click.option(
    "--labels",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="LABELS.txt",
    help="The names of the classes, one a line: answers name the best beside the numbers.",
)
@click.option(
    "--pipeline",
    "members",
    multiple=True,
    metavar="MODEL",
    help="Write a pipeline.yaml with a step that runs this model of the folder. Several times: "
    "a step for each.",
)
@click.pass_context
def init(
    context: click.RichContext,
    /,
    model: str,
    file: Path | None,
    number: int,
    *,
    transform: bool,
    labels: Path | None,
    members: tuple[str, ...],
    **_: object,
) -> None:
    """Make the folder of MODEL, with a config.yaml that has every key, commented out.

    With a FILE, copies it there as the version's model.onnx, and its external data, such as
    FILE.onnx.data, beside it, and what `cohort convert` wrote beside it: its tokenizer, its labels
    and its config. A server that runs serves it within seconds. Overwrites nothing.

    \b
      cohort init mine                          models/mine/1/ and models/mine/config.yaml
      cohort init mine my.onnx                  and my.onnx in it
      cohort init mine better.onnx --version 2
      cohort init mine my.onnx --labels names.txt
      cohort init mine my.onnx --transform      and transform.py around it, with a test
      cohort init both --pipeline mine --pipeline better    models/both/pipeline.yaml
    """
    settings = options.settings_from(context)
    if settings.remote:
        options.fail(f"{settings.remote} is not a folder: --models names one to make a model in")
    from cohort.cli.init_files import files_beside

    external = _check(model, file)
    if members:
        if file is not None or transform or labels is not None:
            options.fail("--pipeline makes a model of others: leave FILE, --transform and --labels")
        _write_pipeline(settings.models_folder, model, members)
        return
    beside = files_beside(file, labels)
    folder = settings.models_folder / model
    version = folder / str(number)
    if file is not None and version.is_dir() and any(version.iterdir()):
        there = [int(one.name) for one in folder.iterdir() if one.name.isdecimal()]
        options.fail(f"{version} is there already; --version {max(there) + 1} makes another")
    try:
        version.mkdir(parents=True, exist_ok=True)
        _write_config(settings.models_folder, folder, beside, transform=transform)
        if transform:
            _write_transform(folder)
        if file is not None:
            parts = {one: file.parent / one for one in external}
            _copy({"model.onnx": file, **parts, **beside.files}, version)
    except OSError as error:
        options.fail(f"{error.filename or folder}: {error.strerror or error}")
    if file is None:
        click.echo(f"Made {version}: put model.onnx there, and its external data beside it.")
    else:
        copied = ", ".join([f"{file.name} as model.onnx", *external, *beside.files])
        click.echo(f"Copied to {version}: {copied}.")
    click.echo("'cohort check' reports mistakes; 'cohort serve' serves it.")


def _write_pipeline(models: Path, model: str, members: Sequence[str]) -> None:
    from cohort.cli.init_pipeline import write_pipeline

    try:
        write_pipeline(models, model, members)
    except OSError as error:
        options.fail(f"{error.filename or models}: {error.strerror or error}")
    click.echo("'cohort check' reports mistakes; 'cohort serve' serves it.")


def _check(model: str, file: Path | None) -> Sequence[str]:
    """Where the file's external data lies in its folder. Exits where something is wrong."""
    from cohort.errors import LoadFailed, ModelNotFound, check_model_name, quoted

    if model.endswith(".onnx") and (file is None or file.suffix != ".onnx"):
        name = Path(model).stem if file is None else file.name
        options.fail(f"the name comes first: cohort init {name} {model}")
    try:
        check_model_name(model)
    except ModelNotFound as error:
        options.fail(f"{quoted(model)} cannot be a model's name{str(error).partition('found')[2]}")
    if file is None:
        return ()
    from cohort.session import find_external

    if not file.exists():
        options.fail(f"{file.absolute()} not found")
    try:
        external = find_external(file)
    except LoadFailed as error:
        told = str(error)
        options.fail(told if told.startswith(file.name) else f"{file.name}: {told}")
    if Path("model.onnx") in map(Path, external):
        options.fail(f"{file}: its external data is called model.onnx, as the model has to be")
    return external


def _write_transform(folder: Path) -> None:
    from cohort.cli.editor_schemas import packaged

    for name in ("transform.py", "test_transform.py"):
        try:
            with (folder / name).open("x", encoding="utf-8") as opened:
                opened.write(packaged(f"{name}.txt", "templates"))
            click.echo(f"Wrote {folder / name}.")
        except FileExistsError:
            click.echo(f"{folder / name} stays as it is.")
    click.echo("The server runs it only with COHORT_MODEL_CODE=allow.")


TRANSFORM_KEY = re.compile(r"^# (transform: ).*$", re.MULTILINE)
"""In the packaged config.yaml."""


def _write_config(models: Path, folder: Path, beside: InitFiles, *, transform: bool) -> None:
    from cohort.cli.editor_schemas import keep_schemas, packaged

    keep_schemas(models)
    config = folder / "config.yaml"
    try:
        with config.open("x", encoding="utf-8") as opened:
            text = beside.uncommented(packaged("config.yaml"))
            if transform:
                text = TRANSFORM_KEY.sub(r"\1transform:Transform", text, count=1)
            opened.write(text)
        used = [*beside.keys, *(["transform"] if transform else [])]
        but = f" but {' and '.join(used)}" if used else ""
        click.echo(f"Wrote {config}: every key, commented out{but}.")
    except FileExistsError:
        click.echo(f"{config} stays as it is.")
        if transform:
            click.echo(f"Add to {config}: transform: transform:Transform")
        for key, value in beside.keys.items():
            click.echo(f"Add to {config}: {key}: {json.dumps(value, ensure_ascii=False)}")


def _copy(files: Mapping[str, Path], version: Path) -> None:
    """Fill an empty folder all at once: a server that looks at it meanwhile sees none or all."""
    copy = version.with_name(f".{version.name}.{uuid4().hex}")
    try:
        for name, source in files.items():
            target = copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        version.rmdir()  # which fails where something is in it by now
        copy.rename(version)
    finally:
        shutil.rmtree(copy, ignore_errors=True)
