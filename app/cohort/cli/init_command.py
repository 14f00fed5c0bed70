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
@click.argument("file", required=False, type=click.Path(path_type=Path), metavar="[FILE]")
@click.option(
    "--version",
    "number",
    type=click.IntRange(1, 10**18 - 1),
    default=1,
    show_default=True,
    metavar="NUMBER",
    help="Version number of the new folder.",
)
@click.option(
    "--transform",
    is_flag=True,
    help="Write a Python class that runs around the model (transform.py), its test, and its key in "
    "config.yaml.",
)
@click.option(
    "--labels",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="LABELS.txt",
    help="Text file with a class name per line; answers include the name of the best class.",
)
@click.option(
    "--pipeline",
    "members",
    multiple=True,
    metavar="MODEL",
    help="Write a pipeline.yaml with a step for this model. Repeatable.",
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
    """Create the folder of MODEL, with a config.yaml that has every key, commented out.

    FILE is copied as the version's model.onnx, with its external data, such as FILE.onnx.data.
    Files that `cohort convert` wrote next to FILE are used as well: tokenizer, labels and config.
    A language model is copied with all files of its folder. FILE may also name that folder.
    A running server serves the model within seconds. Nothing is overwritten.

    \b
    cohort init mine                       models/mine/1/, models/mine/config.yaml
    cohort init mine my.onnx               and models/mine/1/model.onnx
    cohort init mine better.onnx --version 2
    cohort init mine my.onnx --labels names.txt
    cohort init mine my.onnx --transform   and transform.py, with a test
    cohort init both --pipeline mine --pipeline better   models/both/pipeline.yaml
    """
    settings = options.settings_from(context)
    if settings.remote:
        options.fail(f"{settings.remote} is not a folder: give --models a local folder")
    from cohort.cli.init_files import file_in, files_beside

    file = None if file is None else file_in(file)
    external = _check(model, file)
    if members:
        if file is not None or transform or labels is not None:
            options.fail("--pipeline cannot be combined with FILE, --transform or --labels")
        _write_pipeline(settings.models_folder, model, members)
        return
    beside = files_beside(file, labels, transform=transform)
    folder = settings.models_folder / model
    version = folder / str(number)
    if file is not None and version.is_dir() and any(version.iterdir()):
        there = [int(one.name) for one in folder.iterdir() if one.name.isdecimal()]
        options.fail(f"{version} already exists; use --version {max(there) + 1}")
    try:
        version.mkdir(parents=True, exist_ok=True)
        _write_config(settings.models_folder, folder, beside, transform=transform)
        if transform:
            _write_transform(folder)
        if file is not None:
            parts = {one: file.parent / one for one in external}
            _copy({beside.model: file, **parts, **beside.files}, version)
    except OSError as error:
        options.fail(f"{error.filename or folder}: {error.strerror or error}")
    if file is None:
        click.echo(f"Created {version}: copy model.onnx and its external data there.")
    else:
        renamed = "" if file.name == beside.model else f" as {beside.model}"
        others = dict.fromkeys([*external, *beside.files])
        click.echo(f"Copied to {version}: {', '.join([file.name + renamed, *others])}.")
    click.echo("'cohort check' finds problems; 'cohort serve' starts a server.")


def _write_pipeline(models: Path, model: str, members: Sequence[str]) -> None:
    from cohort.cli.init_pipeline import write_pipeline

    try:
        write_pipeline(models, model, members)
    except OSError as error:
        options.fail(f"{error.filename or models}: {error.strerror or error}")
    click.echo("'cohort check' finds problems; 'cohort serve' starts a server.")


def _check(model: str, file: Path | None) -> Sequence[str]:
    """Return the paths of the file's external data. Exits on an error."""
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
    from cohort.generative.version_folder import decoder_file
    from cohort.repository import MODEL_FILE
    from cohort.session import find_external

    if not file.exists():
        options.fail(f"{file.absolute()} not found")
    try:
        external = find_external(decoder_file(file))
    except LoadFailed as error:
        text = str(error)
        options.fail(text if text.startswith(file.name) else f"{file.name}: {text}")
    if MODEL_FILE in map(str, map(Path, external)):
        options.fail(
            f"{file}: its external data is named model.onnx, a name that only the model may have"
        )
    return external


def _write_transform(folder: Path) -> None:
    from cohort.cli.editor_schemas import packaged

    for name in ("transform.py", "test_transform.py"):
        try:
            with (folder / name).open("x", encoding="utf-8") as opened:
                opened.write(packaged(f"{name}.txt", "templates"))
            click.echo(f"Wrote {folder / name}.")
        except FileExistsError:
            click.echo(f"Kept {folder / name}.")
    click.echo("To run model code, an operator must set COHORT_MODEL_CODE=allow.")


TRANSFORM_KEY = re.compile(r"^# (transform: ).*$", re.MULTILINE)
"""Line of the packaged config.yaml."""


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
        but = f" except {' and '.join(used)}" if used else ""
        click.echo(f"Wrote {config}: every key, commented out{but}.")
    except FileExistsError:
        click.echo(f"Kept {config}.")
        if transform:
            click.echo(f"Add to {config}: transform: transform:Transform")
        for key, value in beside.keys.items():
            click.echo(f"Add to {config}: {key}: {json.dumps(value, ensure_ascii=False)}")


def _copy(files: Mapping[str, Path], version: Path) -> None:
    """Fill an empty folder atomically, so that a server sees all files or none."""
    copy = version.with_name(f".{version.name}.{uuid4().hex}")
    try:
        for name, source in files.items():
            target = copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        version.rmdir()  # fails if it is no longer empty
        copy.rename(version)
    finally:
        shutil.rmtree(copy, ignore_errors=True)
