"""`cohort convert` of a language model: a version folder that the server opens."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

from cohort.repository import MODEL_FILE
from cohort_prepare.detecting import OnProgress
from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.finishing import onnx_opset
from cohort_prepare.language_models.measuring import TEXT, Measured, compare_on_text
from cohort_prepare.onnx_files import model_digest, temporary_folder
from cohort_prepare.source import SourceModel
from cohort_prepare.steps import StepDifference, StepRecord, add_step

GENAI_CONFIG = "genai_config.json"

PRECISIONS: Mapping[str, float] = {"fp32": 4.0, "fp16": 2.0, "int4": 1.0}
"""Bytes of disk for each parameter, at most; embeddings stay in floats."""

MAX_GROWTH = 1.02
"""Maximum ratio of perplexities with FP32 and FP16; INT4 is reported instead of refused."""

NOTED_GROWTH = 1.1

MAX_HEADER = 100 << 20


@dataclass(frozen=True, slots=True)
class ConvertedLanguageModel:
    """Result of a conversion.

    folder: The version folder.
    what: The architecture and the precision.
    parameters: Number of weights of the source.
    context_length: Maximum tokens of a prompt and its answer.
    has_template: True if it has a chat template.
    opset: ONNX opset version.
    files: Names of its files, sorted.
    size, source_size: Bytes of the folder, and of the source's weights.
    sha256: Digest of the model with its weights.
    versions: Versions of the libraries that were used.
    measured: Comparison with the source; None if not compared.
    notes: Notes for the user.
    """

    folder: Path
    what: str
    parameters: int
    context_length: int
    has_template: bool
    opset: int
    files: tuple[str, ...]
    size: int
    source_size: int
    sha256: str
    versions: Mapping[str, str]
    measured: Measured | None
    notes: tuple[str, ...] = ()


def convert_language_model(
    source: SourceModel,
    out: Path,
    *,
    precision: str = "fp32",
    text: Path | None = None,
    verify: bool = True,
    on_progress: OnProgress = lambda _: None,
) -> ConvertedLanguageModel:
    """Convert `source` to the version folder `out`, which may be an earlier conversion.

    out: The folder, or `model.onnx` in it.
    precision: A key of PRECISIONS.
    text: Text to compare on; default None: TEXT.
    verify: True to compare with the source.

    Raises Misused and Rejected, and OSError if `out` cannot be written.
    """
    folder = version_folder(out)
    compared = _read_text(text)
    before = Path(source.reference.text)
    parameters, source_size = weights_of(before)
    free = shutil.disk_usage(next(one for one in folder.absolute().parents if one.exists())).free
    check_disk(parameters, precision, folder, free)
    with temporary_folder(folder.absolute().parent) as work:
        made = work / "version"
        made.mkdir()
        on_progress("Converting with onnxruntime-genai")
        options = {"precision": precision}
        export = source.export(made / MODEL_FILE, options=options, on_progress=on_progress)
        for needed in (GENAI_CONFIG, "tokenizer.json"):
            if not (made / needed).is_file():
                raise Rejected(f"onnxruntime-genai's builder wrote no {needed}")
        measured = compare_on_text(source, made, compared, on_progress) if verify else None
        notes = _judge(measured, precision)
        what = f"{export.what} in {precision.upper()}"
        model = onnx.load(made / MODEL_FILE, load_external_data=False)
        difference = measured and StepDifference(measured.max_absolute)
        versions = export.versions
        record = {"framework": "generative", "versions": versions, "options": options}
        add_step(model, StepRecord("convert", what, difference=difference, **record))  # type: ignore[arg-type]
        onnx.save(model, made / MODEL_FILE)
        on_progress("Writing the model")
        config = json.loads((made / GENAI_CONFIG).read_text(encoding="utf-8"))["model"]
        result = ConvertedLanguageModel(
            folder,
            what,
            parameters,
            int(config["context_length"]),
            _has_template(made),
            onnx_opset(model),
            tuple(sorted(one.name for one in made.iterdir())),
            sum(one.stat().st_size for one in made.iterdir()),
            source_size,
            model_digest(made / MODEL_FILE),
            versions,
            measured,
            notes,
        )
        _put(made, folder, work)
    return result


def version_folder(out: Path) -> Path:
    """Return the folder of `--out`. Raises Misused if files there are not an earlier conversion."""
    folder = out.parent if out.name == MODEL_FILE else out
    if folder.suffix == ".onnx":
        raise Misused(
            f"a language model is a folder with a tokenizer: set --out to a version folder such as "
            f"models/{folder.stem}/1"
        )
    if folder.is_file():
        raise Misused(f"{folder} is a file: set --out to a version folder such as models/chat/1")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / GENAI_CONFIG).is_file():
        raise Misused(
            f"{folder} has files that are not a language model: set --out to another version folder"
        )
    return folder


def check_disk(parameters: int, precision: str, folder: Path, free: int) -> None:
    """Raise Misused if `free` bytes at `folder` are too few for the model."""
    needed = int(parameters * PRECISIONS[precision] * 1.1)
    if needed > free:
        smaller = "" if precision == "int4" else ", or a smaller --precision"
        raise Misused(
            f"not enough disk space at {folder.parent}: {parameters / 1e6:,.1f} million parameters "
            f"in {precision.upper()} need up to {needed / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB "
            f"are free. Free some, or set --out to another disk{smaller}"
        )


def weights_of(folder: Path) -> tuple[int, int]:
    """Return the number of parameters in a folder's safetensors files, and their bytes on disk.

    Raises Misused if a file is not in that format.
    """
    parameters = size = 0
    for path in folder.glob("*.safetensors"):
        size += path.stat().st_size
        try:
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(min(length, MAX_HEADER)))
            shapes = [one["shape"] for name, one in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Misused(
                f"{path} is not a safetensors file ({error}): fetch the model again; files of "
                "Git LFS may be pointers"
            ) from error
        for shape in shapes:
            count = 1
            for one in shape:
                count *= one
            parameters += count
    return parameters, size


def _read_text(path: Path | None) -> str:
    if path is None:
        return TEXT
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise Misused(f"--text {path} is not UTF-8: {error.reason}") from error
    except OSError as error:
        raise Misused(f"--text {path} cannot be read: {error.strerror}") from error


def _judge(measured: Measured | None, precision: str) -> tuple[str, ...]:
    """Return notes on the comparison. Raises Rejected if the model is not its source's."""
    if measured is None:
        return ()
    before, after = measured.perplexities
    growth = after / before
    if precision != "int4" and not growth < MAX_GROWTH:
        raise Rejected(
            f"the converted model differs from its source and was not written: its perplexity is "
            f"{after:.4g}, the source's {before:.4g}; use --no-verify to write it anyway"
        )
    if not growth < NOTED_GROWTH:
        return (
            f"its perplexity is {growth - 1:.0%} above the source's: compare answers before you "
            "use it, or convert with --precision fp16",
        )
    return ()


def _has_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file():
        return True
    path = folder / "tokenizer_config.json"
    return path.is_file() and "chat_template" in json.loads(path.read_text(encoding="utf-8"))


def _put(made: Path, folder: Path, work: Path) -> None:
    """Move the new version folder into place; an earlier one is deleted."""
    if folder.exists():
        folder.rename(work / "earlier")
    made.rename(folder)
