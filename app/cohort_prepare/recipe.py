"""`recipe.yaml`: all steps of a model from its source to the server.

A section is a step; its keys are the options of the command of that name. Paths and modules are
relative to the recipe's folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, with_config

from cohort.errors import MODEL_NAME, MODEL_NAME_RULE
from cohort.repository import (
    ConfigProblems,
    ImageInput,
    Problem,
    Range,
    parse_yaml,
    read_text,
    validate_tree,
)
from cohort_prepare.failures import Misused
from cohort_prepare.frameworks import FRAMEWORKS


@dataclass(frozen=True, slots=True)
class ConvertSection:
    """`convert:`, options of `cohort convert`.

    example: A .npz with inputs by name, to convert and compare with; default None: generated.
    opset: ONNX opset version; default None: the exporter's preferred one.
    verify: Compare both models on the same rows before writing; default True.
    """

    example: str | None = None
    opset: int | None = None
    verify: bool = True


@dataclass(frozen=True, slots=True)
class VerifySection:
    """`verify:`, options of `cohort verify`.

    inputs: A .npz with inputs by name; default None: generated.
    labels: A .npy with the correct answer for each row of the inputs, for accuracy; default None.
    tolerance: Allowed difference as a share of the row's largest value; default None: by datatype.
    """

    inputs: str | None = None
    labels: str | None = None
    tolerance: float | None = None


@dataclass(frozen=True, slots=True)
class OptimizeSection:
    """`optimize:`, options of `cohort optimize`.

    steps: Steps in order, even if slower: slim, fuse, fp16, bf16, ort-basic, ort-extended, ort-all;
        default None: those that are not slower on this machine.
    opset: ONNX opset version to convert to first; default None: unchanged.
    inputs: A .npz with inputs by name, for comparison and timing; default None: generated.
    """

    steps: tuple[str, ...] | None = None
    opset: int | None = None
    inputs: str | None = None


@dataclass(frozen=True, slots=True)
class QuantizeSection:
    """`quantize:`, options of `cohort quantize`.

    recipe: auto keeps the best recipe that pays, or none; another is written unless quality drops
        too much; default "auto".
    calibration: Rows for static: a .npz, a .jsonl of requests, or a folder of those; default None.
    inputs: Rows to compare outputs on; default None: those of the calibration.
    labels: A .npy with the correct answer for each row of the inputs; default None.
    allowed_drop: Allowed loss of accuracy; without labels, of rows with the same decision;
        default 0.01.
    methods: Calibration methods, of which the one with the closest outputs is used; default none:
        all three.
    weight_bits: 7 for x86 processors without VNNI, otherwise 8; default None: chosen for this
        machine.
    """

    recipe: Literal["auto", "dynamic", "static", "fp16", "int4"] = "auto"
    calibration: str | None = None
    inputs: str | None = None
    labels: str | None = None
    allowed_drop: float = 0.01
    methods: tuple[Literal["minmax", "entropy", "percentile"], ...] = ()
    weight_bits: Literal[7, 8] | None = None


@dataclass(frozen=True, slots=True)
class AddImageInputSection:
    """`add_image_input:`, an input of image files or raw pixels in place of a pixel tensor.

    image: Preprocessing, as in `inputs.<input>.image` of config.yaml.
    name: Name of the new input, UINT8 [bytes]; default "image".
    of: The model's pixel input; default None: its only one.
    """

    image: ImageInput = field(default_factory=ImageInput)
    name: str = "image"
    of: str | None = None


@dataclass(frozen=True, slots=True)
class AddTokenizerSection:
    """`add_tokenizer:`, an input of text in place of token ids.

    tokenizer: The model's tokenizer.json, which must be WordPiece as in BERT.
    max_length: Maximum ids per text; the rest is cut; default None: from tokenizer.json, or 512.
    name: Name of the new input, STRING [N]; default "text".
    texts: A file with a text per line, to check against the tokenizer's ids; default None: a few
        built-in ones.
    """

    tokenizer: str
    max_length: int | None = None
    name: str = "text"
    texts: str | None = None


@dataclass(frozen=True, slots=True)
class AddLabelsSection:
    """`add_labels:`, class names in the model's metadata, which the server returns.

    labels: A file with a name per line, in the order of the columns.
    output: The output with the scores; default None: the one with as many columns.
    """

    labels: str
    output: str | None = None


@dataclass(frozen=True, slots=True)
class PublishSection:
    """`publish:`, options of `cohort publish`.

    name: Model name.
    to: Models folder, or the address of a remote one.
    examples: A .npz with inputs by name, and known outputs as output:NAME; the manifest gets
        examples from it; default None: generated.
    labels: A .npy with the correct answer for each row of the examples; default None.
    sign: File of a private key for the signature; default None: unsigned.
    """

    name: str
    to: str
    examples: str | None = None
    labels: str | None = None
    sign: str | None = None


@with_config(ConfigDict(extra="forbid", allow_inf_nan=False))
@dataclass(frozen=True, slots=True)
class ModelRecipe:
    """Contents of the file. Steps run in the order below; a section without keys is `{}`.

    source: A framework's model: a file, a folder or module:callable. An ONNX file is not converted.
    framework: The source's framework; default None: detected.
    trust_pickle: Allow pickle files, which can run arbitrary code; default False.
    python: Python interpreter of the source's environment; default None: found, or created by uv.
    packages: Further packages that the source needs, in pip's syntax; default none.
    work: Folder to keep the model of each step in; default None: only the published model is kept.
    convert: Convert the source to ONNX; done with defaults if it is omitted.
    verify: Compare the ONNX model with the source.
    optimize: Make the model smaller and faster.
    quantize: Make the model smaller with other datatypes.
    add_image_input: Decode images in the model.
    add_tokenizer: Tokenize text in the model.
    add_labels: Write class names into the model.
    publish: Publish the model as a version in a models folder.
    """

    source: str
    framework: str | None = None
    trust_pickle: bool = False
    python: str | None = None
    packages: tuple[str, ...] = ()
    work: str | None = None
    convert: ConvertSection = field(default_factory=ConvertSection)
    verify: VerifySection | None = None
    optimize: OptimizeSection | None = None
    quantize: QuantizeSection | None = None
    add_image_input: AddImageInputSection | None = None
    add_tokenizer: AddTokenizerSection | None = None
    add_labels: AddLabelsSection | None = None
    publish: PublishSection | None = None

    @property
    def steps(self) -> Iterator[tuple[str, StepSection]]:
        """Yield the sections that are present, in execution order."""
        for name in SECTIONS:
            section = getattr(self, name)
            if section is not None and not (name == "convert" and self.is_onnx):
                yield name, section

    @property
    def is_onnx(self) -> bool:
        """True if the source is already an ONNX file."""
        return self.source.endswith(".onnx")

    @property
    def has_other_inputs(self) -> bool:
        """True if the final model has other inputs than its source."""
        return self.add_image_input is not None or self.add_tokenizer is not None

    def inputs(self) -> Iterator[str]:
        """Yield the files that the recipe reads. A source may also be module:callable."""
        yield self.source
        for _, section in self.steps:
            for key in FILES_READ:
                value = getattr(section, key, None)
                if value is not None:
                    yield value


GraftSection = AddImageInputSection | AddTokenizerSection | AddLabelsSection

StepSection = (
    ConvertSection | VerifySection | OptimizeSection | QuantizeSection | GraftSection
    | PublishSection
)  # fmt: skip

SECTIONS: Mapping[str, type[StepSection]] = {
    "convert": ConvertSection,
    "verify": VerifySection,
    "optimize": OptimizeSection,
    "quantize": QuantizeSection,
    "add_image_input": AddImageInputSection,
    "add_tokenizer": AddTokenizerSection,
    "add_labels": AddLabelsSection,
    "publish": PublishSection,
}
"""In execution order."""

FILES_READ = (
    *("example", "inputs", "labels", "calibration", "examples"),
    *("tokenizer", "texts"),
)

RECIPE_RANGES: Mapping[str, Range] = {
    "convert.opset": Range(7, 26),
    "verify.tolerance": Range(0, 10),
    "optimize.opset": Range(7, 26),
    "quantize.allowed_drop": Range(0, 1),
    "add_image_input.image.size.*": Range(1, 16_384),
    "add_image_input.image.shorter_side": Range(1, 16_384),
    "add_tokenizer.max_length": Range(1, 2**20),
}

OPTIONS = {"framework": "--from", "packages": "--with", "methods": "--method"}
"""Options whose names differ from their keys."""


def read_recipe(path: Path) -> ModelRecipe:
    """Read a recipe. Raises Misused with all its problems."""
    try:
        text = read_text(path, str(path))
        if text is None:
            raise Misused(f"{path} not found")
        recipe = validate_tree(parse_yaml(text, str(path)), ModelRecipe, str(path), RECIPE_RANGES)
        _check(recipe, path)
    except ConfigProblems as error:
        raise Misused(str(error), {"problems": [str(one) for one in error.problems]}) from error
    return recipe


def _check(recipe: ModelRecipe, path: Path) -> None:
    """Raise ConfigProblems for everything that can be checked before the first step."""
    found = [Problem(str(path), *one) for one in _wrong(recipe, path.absolute().parent)]
    if found:
        raise ConfigProblems(found)


def _wrong(recipe: ModelRecipe, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield each problem with its key."""
    if recipe.framework is not None and recipe.framework not in FRAMEWORKS:
        names = ", ".join(FRAMEWORKS)
        yield "framework", f"must be one of {names}, got {recipe.framework!r}"
    if recipe.publish is None and recipe.work is None:
        yield "", "nothing would be kept: add publish, or set work to a folder"
    if recipe.is_onnx:
        if not (folder / recipe.source).is_file():
            yield "source", f"{recipe.source} not found"
        if recipe.convert != ConvertSection():
            yield "convert", f"{recipe.source} is already an ONNX model: remove this section"
    made = None if recipe.work is None else (folder / recipe.work).resolve()
    for name, section in recipe.steps:
        for key in (*FILES_READ, "sign"):
            value = getattr(section, key, None)
            if value is None or (folder / value).exists():
                continue
            if made is None or made not in (folder / value).resolve().parents:
                yield f"{name}.{key}", f"{value} not found"
    if recipe.verify is not None and recipe.verify.labels and not recipe.verify.inputs:
        yield "verify.labels", "need verify.inputs"
    if recipe.optimize is not None:
        yield from _wrong_steps(recipe.optimize)
    if recipe.publish is not None:
        yield from _wrong_place(recipe.publish)


def _wrong_steps(section: OptimizeSection) -> Iterator[tuple[str, str]]:
    from cohort_prepare.optimizing import OptimizeOptions

    try:
        OptimizeOptions(steps=section.steps, opset=section.opset).plan()
    except Misused as error:
        yield "optimize.steps", str(error)


def _wrong_place(section: PublishSection) -> Iterator[tuple[str, str]]:
    if not MODEL_NAME.fullmatch(section.name):
        yield "publish.name", f"{MODEL_NAME_RULE}, got {section.name!r}"
    if section.labels and not section.examples:
        yield "publish.labels", "need publish.examples"
    if section.to.startswith("http"):
        yield "publish.to", "cannot publish to a web server; use a bucket"


def source_arguments(recipe: ModelRecipe) -> list[str]:
    """Return the options of commands that read the source."""
    keys = ("framework", "trust_pickle", "python", "packages")
    return [part for key in keys for part in _option(key, getattr(recipe, key))]


def publish_arguments(recipe: ModelRecipe) -> list[str]:
    """Return options to compare with the source, if both models have the same inputs."""
    if recipe.has_other_inputs:
        return []
    return ["--source", recipe.source, *source_arguments(recipe)]


def arguments_of(section: StepSection) -> list[str]:
    """Return a section's keys as command-line options."""
    return [
        part for one in fields(section) for part in _option(one.name, getattr(section, one.name))
    ]


def _option(key: str, value: object) -> Sequence[str]:
    name = OPTIONS.get(key, f"--{key.replace('_', '-')}")
    match value:
        case None | ():
            return ()
        case True:
            return (name,)
        case False:
            return (f"--no-{key}",) if key == "verify" else ()
        case tuple() if key == "steps":
            return (name, ",".join(map(str, value)))
        case tuple():
            return [part for one in value for part in (name, str(one))]
    return (name, str(value))
