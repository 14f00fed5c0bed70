"""`cohort publish` as a function: from a file to a version."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

import onnx

from cohort.errors import MODEL_NAME, MODEL_NAME_RULE, LoadFailed, quoted
from cohort.generative.factory import is_language_model
from cohort.profiling import row_advice
from cohort.repository import (
    GENAI_FILE,
    MANIFEST_FILE,
    PIPELINE_FILE,
    SIGNATURE_FILE,
    Change,
    Example,
    Manifest,
    PublishedRows,
    SourceFramework,
    StepRecord,
    dump_manifest,
    parse_manifest,
)
from cohort.row_independence import RowVerdict
from cohort.session import ANY_MODEL, Digests, Opener
from cohort.system.remote_address import is_remote
from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.finishing import onnx_opset
from cohort_prepare.onnx_files import model_size, temporary_folder
from cohort_prepare.publishing.card import write_card
from cohort_prepare.publishing.checks import CheckedModel, check_publishable
from cohort_prepare.publishing.destination import find_published, place_version, write_manifest
from cohort_prepare.publishing.evidence import PublishEvidence, gather_evidence
from cohort_prepare.publishing.pipelines import check_pipeline_file
from cohort_prepare.publishing.placing import folder_for_version
from cohort_prepare.publishing.request import Publication, PublishRequest
from cohort_prepare.steps import read_steps

_MODEL_FILE = "model.onnx"


def publish_model(
    request: PublishRequest, *, on_progress: Callable[[str], None] = lambda _: None
) -> Publication:
    """Publish a model atomically as the next version.

    on_progress: Called with a description of each step; default: ignored.

    A version that already has these files, and the key's signature if one is given, is returned
    after it passes the given examples. Raises Misused, Rejected and OSError; then nothing
    is published.
    """
    if not MODEL_NAME.fullmatch(request.name):
        raise Misused(f"--name {quoted(request.name)}: {MODEL_NAME_RULE}")
    if not request.model.is_file():
        listed = request.model / GENAI_FILE
        found = f"is a folder; name {listed}" if listed.exists() else "is not a file"
        raise Misused(f"{request.model} {found if request.model.exists() else 'not found'}")
    if is_remote(request.to):
        if request.to.startswith("http"):
            raise Misused(f"--to {request.to}: cannot publish to a web server; use a bucket")
        with TemporaryDirectory(prefix="cohort-") as name:
            folder = Path(name) / "version"
            folder.mkdir()
            return _publish(request, folder, on_progress)
    with folder_for_version(Path(request.to) / request.name) as folder:
        return _publish(request, folder, on_progress)


def _publish(
    request: PublishRequest, folder: Path, on_progress: Callable[[str], None]
) -> Publication:
    if request.model.name == PIPELINE_FILE:
        return _publish_pipeline(request, folder, on_progress)
    if is_language_model(request.model):
        return _publish_language_model(request, folder, on_progress)
    with temporary_folder(folder) as work:
        on_progress("Checking the model")
        checked = check_publishable(request.model, work, request.limits)
        path, notes = _prepare(request, work, on_progress)
        if path != request.model:
            on_progress("Checking the new model")
            checked = check_publishable(path, work, request.limits)
        digests = _copy(path, checked.external, folder)
        already = find_published(request, digests)
        if already is not None and not request.gives_evidence:
            return already
        published = folder / _MODEL_FILE
        before = request.model if path != request.model else None
        evidence = gather_evidence(
            published,
            examples=request.examples,
            labels=request.labels,
            source=request.source,
            before=before,
            on_progress=on_progress,
        )
        if already is not None:
            return replace(already, notes=(*notes, *evidence.notes))
        checked = checked._replace(rows=_rows(published, checked.rows, evidence.examples))
    manifest = _manifest(request, checked, digests, evidence, before, published)
    content = dump_manifest(manifest)
    try:
        parse_manifest(content)
    except LoadFailed as error:
        notes = (*notes, f"the distribution of inputs was omitted: {error}")
        manifest = replace(manifest, features={})
        content = dump_manifest(manifest)
    signer = write_manifest(request, folder, content)
    on_progress("Writing the card")
    notes = (*notes, *evidence.notes, *_alone(checked.rows))
    write_card(folder, manifest, given=evidence.given, signer=signer, notes=notes)
    on_progress("Publishing the version")
    version, where = place_version(request, folder)
    return Publication(version, where, manifest, signer=signer, notes=notes)


def _publish_pipeline(
    request: PublishRequest, folder: Path, on_progress: Callable[[str], None]
) -> Publication:
    """Publish a pipeline with the files that it names. Nothing is run."""
    if request.gives_evidence or request.optimize or request.quantize is not None:
        raise Misused(
            f"a {PIPELINE_FILE} is published unchanged: examples, labels, source, optimize and "
            "quantize are for its models"
        )
    on_progress("Checking the pipeline")
    checked = check_pipeline_file(request.model, request.name, request.to)
    for name in (PIPELINE_FILE, *checked.files):
        shutil.copyfile(request.model.parent / name, folder / name)
    digests = Digests()
    files = {name: digests.of(folder / name) for name in (PIPELINE_FILE, *checked.files)}
    if (already := find_published(request, files)) is not None:
        return replace(already, notes=checked.notes)
    manifest = Manifest(1, files, model=request.name)
    return _publish_with(manifest, request, folder, on_progress, checked.notes)


def _publish_language_model(
    request: PublishRequest, folder: Path, on_progress: Callable[[str], None]
) -> Publication:
    """Publish a language model with all files of its folder, and its answers to given examples."""
    from cohort_prepare.publishing.language_models import answer_texts, copy_files, read_texts

    others = (request.labels, request.source, request.quantize)
    if request.optimize or any(one is not None for one in others):
        raise Misused("labels, source, optimize and quantize do not apply to language models")
    wanted = () if request.examples is None else read_texts(request.examples)
    files = copy_files(request.model, folder)
    already = find_published(request, files)
    if already is not None and not wanted:
        return already
    on_progress("Running the model")
    texts, measured_on = answer_texts(folder / next(iter(files)), wanted, request.limits)
    if already is not None:
        return already
    size = Change(sum((folder / name).stat().st_size for name in files))
    manifest = Manifest(
        1, files, model=request.name, size_bytes=size, measured_on=measured_on, texts=texts
    )
    return _publish_with(manifest, request, folder, on_progress)


def _publish_with(
    manifest: Manifest,
    request: PublishRequest,
    folder: Path,
    on_progress: Callable[[str], None],
    notes: tuple[str, ...] = (),
) -> Publication:
    """Publish the files in a folder with a manifest, without a card."""
    signer = write_manifest(request, folder, dump_manifest(manifest))
    on_progress("Publishing the version")
    version, where = place_version(request, folder)
    return Publication(version, where, manifest, signer=signer, notes=notes)


def _prepare(
    request: PublishRequest, work: Path, on_progress: Callable[[str], None]
) -> tuple[Path, tuple[str, ...]]:
    """Apply the requested steps; return the resulting file and notes."""
    path = request.model
    notes: tuple[str, ...] = ()
    if request.optimize:
        from cohort_prepare.optimizing import optimize

        made = work / "optimized" / _MODEL_FILE
        made.parent.mkdir()
        if any(
            one.kept
            for one in optimize(path, made, cases=request.examples, on_progress=on_progress).steps
        ):
            path = made
    if request.quantize is not None:
        from cohort_prepare.quantizing import QuantizeOptions, quantize_model

        made = work / "quantized" / _MODEL_FILE
        made.parent.mkdir()
        options = QuantizeOptions(
            recipe=request.quantize,  # type: ignore[arg-type]  # which it checks
            calibration=request.calibration or request.examples,
            inputs=request.examples,
            labels=request.labels,
        )
        result = quantize_model(path, made, options, on_progress=on_progress)
        if result.acceptable:
            path, notes = made, result.notes
        elif request.quantize == "auto":
            notes = (f"not quantized: {result.reason}",)
        else:
            raise Rejected(f"the model cannot be quantized: {result.reason}")
    return path, notes


def _rows(path: Path, known: RowVerdict, examples: Sequence[Example]) -> RowVerdict:
    """Return the row verdict that a server would reach with these examples."""
    opener = Opener(path, rules=ANY_MODEL)
    opener.read()
    opener.rows = known
    return opener.prove_for([dict(one.inputs) for one in examples])


def _alone(rows: RowVerdict) -> Iterator[str]:
    """Yield a note if a server cannot batch the model."""
    if not rows.independent:
        yield f"a server runs its requests one by one: {rows}; to batch: {row_advice(rows)}"


def _copy(path: Path, external: list[str], folder: Path) -> dict[str, str]:
    """Copy the model and its external data to a version's folder; return their digests by path."""
    shutil.copyfile(path, folder / _MODEL_FILE)
    for location in external:
        target = folder / location
        if target.name in {_MODEL_FILE, MANIFEST_FILE, SIGNATURE_FILE, "MODEL.md"}:
            raise Rejected(f"its external data {quoted(location)} has a reserved name: rename it")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path.parent / location, target)
    digests = Digests()
    return {
        PurePosixPath(name).as_posix(): digests.of(folder / name)
        for name in (_MODEL_FILE, *external)
    }


def _manifest(
    request: PublishRequest,
    checked: CheckedModel,
    files: Mapping[str, str],
    evidence: PublishEvidence,
    before: Path | None,
    published: Path,
) -> Manifest:
    model = checked.model
    steps = read_steps(model)
    size = model_size(published)
    return Manifest(
        1,
        files,
        model=request.name,
        source=_source(steps, model),
        opset=onnx_opset(model) or None,
        steps=steps,
        difference=evidence.difference,
        accuracy=evidence.accuracy,
        size_bytes=Change(size, None if before is None else model_size(before)),
        latency_ms=evidence.latency,
        measured_on=evidence.measured_on,
        rows=PublishedRows.of(checked.rows),
        features=evidence.features,
        examples=evidence.examples,
    )


def _source(steps: tuple[StepRecord, ...], model: onnx.ModelProto) -> SourceFramework | None:
    """Return the framework of the conversion step, or the producer in the file."""
    for one in steps:
        if one.framework:
            version = next((v for name, v in one.versions.items() if name in one.framework), "")
            return SourceFramework(one.framework, version or next(iter(one.versions.values()), ""))
    if model.producer_name:
        return SourceFramework(model.producer_name, model.producer_version)
    return None
