"""`recipe.yaml`: the whole way of one model to the server, in a file.

A section is a step, and its keys are the options of the command of that name. Paths are relative to
the recipe's folder, and modules are found there.
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
    """`convert:`, the options of `cohort convert`.

    example: A .npz with inputs by name, to convert and compare with; default None: made up.
    opset: The version of ONNX's operators; default None: what the framework's exporter does best.
    verify: Whether to run both models on the same rows before the new one is written; default True.
    """

    example: str | None = None
    opset: int | None = None
    verify: bool = True


@dataclass(frozen=True, slots=True)
class VerifySection:
    """`verify:`, the options of `cohort verify`.

    inputs: A .npz with inputs by name; default None: made up of the model's description.
    labels: A .npy with the right answer for each row of the inputs, for accuracy; default None.
    tolerance: How far numbers may be off, as a share of the largest in their row; default None: by
        the datatype.
    """

    inputs: str | None = None
    labels: str | None = None
    tolerance: float | None = None


@dataclass(frozen=True, slots=True)
class OptimizeSection:
    """`optimize:`, the options of `cohort optimize`.

    steps: What to do, in this order, whether it pays here or not: slim, fuse, fp16, bf16,
        ort-basic, ort-extended, ort-all; default None: what is not slower on this machine.
    opset: The version of ONNX's operators to convert to first; default None: as it is.
    inputs: A .npz with inputs by name, to verify and time with; default None: made up.
    """

    steps: tuple[str, ...] | None = None
    opset: int | None = None
    inputs: str | None = None


@dataclass(frozen=True, slots=True)
class QuantizeSection:
    """`quantize:`, the options of `cohort quantize`.

    recipe: dynamic, static, fp16 or int4, of which the model is made unless it loses too much; auto
        takes the best of those that are worth it, or leaves the model as it is; default "auto".
    calibration: Rows for static: a .npz, a .jsonl of recorded requests, or a folder of those;
        default None.
    inputs: Rows to compare outputs on; default None: those of the calibration.
    labels: A .npy with the right answer for each row of the inputs; default None.
    allowed_drop: Of accuracy; without labels, the share of rows that may be decided otherwise;
        default 0.01.
    methods: Of calibration, of which the one with the closest outputs is taken: minmax, entropy,
        percentile; default none: all three.
    weight_bits: 7 where an x86 processor without VNNI will serve, else 8; default None: as this
        machine's needs.
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
    """`add_image_input:`, an input of PNG files or raw pixels in place of one of pixels.

    image: What becomes of a picture, as `inputs.<input>.image` in config.yaml has it.
    name: Of the new input, UINT8 [bytes]; default "image".
    of: The model's input of pixels; default None: its only one.
    """

    image: ImageInput = field(default_factory=ImageInput)
    name: str = "image"
    of: str | None = None


@dataclass(frozen=True, slots=True)
class AddTokenizerSection:
    """`add_tokenizer:`, an input of sentences in place of those of ids.

    tokenizer: The model's tokenizer.json, which must be WordPiece as BERT has it.
    max_length: The most ids of a sentence, the rest of which is left out; default None: what
        tokenizer.json says, or 512.
    name: Of the new input, STRING [N]; default "text".
    texts: A file of sentences, one a line, which must get the very ids that the tokenizer gives;
        default None: a few made-up ones.
    """

    tokenizer: str
    max_length: int | None = None
    name: str = "text"
    texts: str | None = None


@dataclass(frozen=True, slots=True)
class AddLabelsSection:
    """`add_labels:`, names of the classes in the model's metadata, which the server answers.

    labels: A file with one a line, in the order of the columns.
    output: The output with the scores; default None: the one with as many columns.
    """

    labels: str
    output: str | None = None


@dataclass(frozen=True, slots=True)
class PublishSection:
    """`publish:`, the options of `cohort publish`.

    name: The model's name.
    to: The models folder, or the address of a remote one.
    examples: A .npz with inputs by name, and outputs as output:NAME where they are known, of which
        the manifest gets examples; default None: made up.
    labels: A .npy with the right answer for each row of the examples; default None.
    sign: The file of a private key to sign the version with; default None: it is not signed.
    """

    name: str
    to: str
    examples: str | None = None
    labels: str | None = None
    sign: str | None = None


@with_config(ConfigDict(extra="forbid", allow_inf_nan=False))
@dataclass(frozen=True, slots=True)
class ModelRecipe:
    """The whole file. The steps are done in the order below; a section without keys is `{}`.

    source: A framework's model: a file, a folder or module:callable; or an ONNX file, which is not
        converted.
    framework: The source's framework; default None: found by the source.
    trust_pickle: Whether to read a source that is a pickle, which runs what is in it; default
        False.
    python: The Python of the source's own environment; default None: found, or made by uv.
    packages: What the source needs besides, as pip writes it; default none.
    work: The folder to keep the model of each step in; default None: only what is published is
        kept.
    convert: Make an ONNX model of the source; done with its defaults where it is left out.
    verify: Compare the ONNX model with the source.
    optimize: Make the model smaller and faster by steps that are verified and measured.
    quantize: Make the model smaller by other datatypes.
    add_image_input: Have the model decode pictures itself.
    add_tokenizer: Have the model cut sentences into ids itself.
    add_labels: Write the names of its classes into the model.
    publish: Write a version of it into a models folder.
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
        """The sections that are there, in the order in which they are done."""
        for name in SECTIONS:
            section = getattr(self, name)
            if section is not None and not (name == "convert" and self.is_onnx):
                yield name, section

    @property
    def is_onnx(self) -> bool:
        """Whether the source is an ONNX file already."""
        return self.source.endswith(".onnx")

    @property
    def has_other_inputs(self) -> bool:
        """Whether the model takes something else at the end than its source does."""
        return self.add_image_input is not None or self.add_tokenizer is not None

    def inputs(self) -> Iterator[str]:
        """The files that the recipe reads; the source is none where it is module:callable."""
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
"""In the order in which they are done."""

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
"""Where an option has another name than its key, since Python has taken it."""


def read_recipe(path: Path) -> ModelRecipe:
    """Read a recipe. Raises Misused with everything that is wrong in it."""
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
    """Raise ConfigProblems for all that can be known before the first step takes its time."""
    found = [Problem(str(path), *one) for one in _wrong(recipe, path.absolute().parent)]
    if found:
        raise ConfigProblems(found)


def _wrong(recipe: ModelRecipe, folder: Path) -> Iterator[tuple[str, str]]:
    """What is wrong, by key."""
    if recipe.framework is not None and recipe.framework not in FRAMEWORKS:
        names = ", ".join(FRAMEWORKS)
        yield "framework", f"must be one of {names}, got {recipe.framework!r}"
    if recipe.publish is None and recipe.work is None:
        yield "", "nothing would be kept: add publish, or a folder for the models as work"
    if recipe.is_onnx:
        if not (folder / recipe.source).is_file():
            yield "source", f"{recipe.source} not found"
        if recipe.convert != ConvertSection():
            yield "convert", f"{recipe.source} is an ONNX model already: leave this out"
    made = None if recipe.work is None else (folder / recipe.work).resolve()
    for name, section in recipe.steps:
        for key in (*FILES_READ, "sign"):
            value = getattr(section, key, None)
            if value is None or (folder / value).exists():
                continue
            if made is None or made not in (folder / value).resolve().parents:
                yield f"{name}.{key}", f"{value} not found"
    if recipe.verify is not None and recipe.verify.labels and not recipe.verify.inputs:
        yield "verify.labels", "are for the rows of inputs: give these, too"
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
        yield "publish.labels", "are those of examples: give both"
    if section.to.startswith("http"):
        yield "publish.to", "a web server cannot be written to; name a bucket"


def source_arguments(recipe: ModelRecipe) -> list[str]:
    """What every command takes that reads the source."""
    keys = ("framework", "trust_pickle", "python", "packages")
    return [part for key in keys for part in _option(key, getattr(recipe, key))]


def publish_arguments(recipe: ModelRecipe) -> list[str]:
    """Have the manifest say how far the model is from its source, where both take the same."""
    if recipe.has_other_inputs:
        return []
    return ["--source", recipe.source, *source_arguments(recipe)]


def arguments_of(section: StepSection) -> list[str]:
    """The options of a section as its command takes them."""
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
