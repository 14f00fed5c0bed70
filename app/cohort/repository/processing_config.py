"""`inputs:` and `outputs:` in a model's config: what callers send, and what they get."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import ConfigDict, with_config

from cohort.repository.schema import Range

METADATA = "metadata"
"""In the place of labels: those that the model's file has."""

MOST_LENGTH = 2**20


@dataclass(frozen=True, slots=True)
class ImageInput:
    """`inputs.<input>.image`: callers send pictures, as files.

    size: Height and width that the model takes; default None: those of its input.
    resize: stretch takes the whole picture to that size; shorter_side_then_crop keeps its
        proportions, and takes the middle; default "stretch".
    shorter_side: Pixels of the shorter side before the middle is taken; default None: the larger
        number of `size`.
    mean: Taken from each channel, whose values are from 0 to 1; default None: 0. An input of UINT8
        takes 0 to 255, without mean and std.
    std: What each channel is divided by then; default None: 1.
    layout: The axes of the model's input; default None: nchw or nhwc, by its shape.
    channels: rgb, bgr or grey; default None: rgb, or grey for a model of one channel.
    """

    size: tuple[int, ...] | None = None
    resize: Literal["stretch", "shorter_side_then_crop"] = "stretch"
    shorter_side: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    layout: Literal["nchw", "nhwc"] | None = None
    channels: Literal["rgb", "bgr", "grey"] | None = None


@dataclass(frozen=True, slots=True)
class AudioInput:
    """`inputs.<input>.audio`: callers send sound, as files.

    sample_rate: Samples a second that the model takes, in hertz.
    channels: 1 fills [N, samples] with the mean of all channels; more fill [N, channels, samples];
        default 1.
    max_seconds: The longest sound that is taken; default 600.
    """

    sample_rate: int
    channels: int = 1
    max_seconds: float = 600.0


@dataclass(frozen=True, slots=True)
class StandardiseInput:
    """`inputs.<input>.standardise`: callers send numbers as they are.

    mean: Taken from each number: one for all, or one for each column.
    std: What each number is divided by then: one for all, or one for each column.
    """

    mean: float | tuple[float, ...]
    std: float | tuple[float, ...]


DatePart = Literal["year", "month", "day", "weekday", "day_of_year", "days", "hour", "minute"]


@dataclass(frozen=True, slots=True)
class InputConfig:
    """`inputs.<name>`: how an input of callers becomes inputs of the model.

    image: It is a picture, for the model's input of that name; default None: it is none.
    audio: It is sound, for the model's input of that name; default None: it is none.
    tokenizer: It is text, for input_ids and what else the model takes of a tokenizer: the name of
        its tokenizer.json in the version's folder; default None: it is no text to be cut into ids.
    max_length: The most ids of a text, the rest of which is left out; default None: what
        tokenizer.json says, or 512.
    pairs: Whether each row is two texts, such as a question and an answer: [N, 2]; default False.
    missing: What stands for null and for an empty cell: a number, or a string where the model takes
        strings; default None: NaN for floats; for others such a request is refused.
    columns: The names of the columns of an only input [N, columns]; default None: those in the
        model's metadata. A column may then be an input here, by its name.
    categories: Callers send one of these, and the model takes its place in this list, from 0: a
        list, or the name of a file in the version's folder with one a line; default None: those in
        the model's metadata, if any.
    unknown: What stands for a word that is none of the categories: one of them, a number for the
        model, or nan; default None: such a request is refused.
    one_hot: Whether the model takes 1 for the category and 0 for all others, [N, categories], or in
        columns NAME_CATEGORY as pandas' get_dummies has them; default False: it takes codes.
    standardise: Callers send numbers as they are, and the model takes them standardised; default
        None: it takes them as they are sent.
    date: Callers send a date in ISO 8601, and the model takes these parts of it as numbers, in this
        order, [N, parts], or in columns NAME_PART; `weekday` is 0 on Mondays, and `days` are those
        since 1970-01-01; default None: it is no date.
    """

    image: ImageInput | None = None
    audio: AudioInput | None = None
    tokenizer: str | None = None
    max_length: int | None = None
    pairs: bool = False
    missing: float | str | None = None
    columns: tuple[str, ...] | None = None
    categories: tuple[float | str, ...] | str | None = None
    unknown: float | str | None = None
    one_hot: bool = False
    standardise: StandardiseInput | None = None
    date: tuple[DatePart, ...] | None = None

    @property
    def takes(self) -> str:
        """What callers send: "image", "audio" or "text"; "" for an array."""
        if self.tokenizer is not None:
            return "text"
        return "image" if self.image is not None else "audio" if self.audio is not None else ""


@dataclass(frozen=True, slots=True)
class DetectionOutput:
    """`outputs.<output>.detections`: an output of boxes, which answers in JSON have as objects.

    scores: The output that has the score of each box, or a column for each class; or the number of
        a column of this output.
    classes: The output that has the class of each box, or a column for each class; or the number of
        a column of this output; default None: the class of the best score.
    format: The four numbers of a box, of corners, or of a corner or the centre with width and
        height; default "xyxy".
    normalized: Whether they are parts of the picture's width and height; default False: pixels.
    size: Height and width of the pictures that the model takes, to answer pixels as parts of these;
        default None: pixels stay.
    threshold: The least score of an object; default None: any.
    top: The most objects of a picture; default None: any number.
    labels: The names of the classes, as `labels` of an output takes them; default None: numbers.
        Columns of scores beyond them are no classes, such as "no object".
    """

    scores: str | int
    classes: str | int | None = None
    format: Literal["xyxy", "xywh", "cxcywh", "yxyx"] = "xyxy"
    normalized: bool = False
    size: tuple[int, ...] | None = None
    threshold: float | None = None
    top: int | None = None
    labels: tuple[str, ...] | str | None = None


@dataclass(frozen=True, slots=True)
class OutputConfig:
    """`outputs.<name>`: what callers get of an output of the model.

    labels: The names of its classes: a list, the name of a file in the version's folder with one a
        line, or `metadata`: those that the model's file has; default None: it has none.
    top: How many of the best classes of each row are named; default None: the best one, or with a
        threshold all that reach it.
    threshold: The least score of a class that is named, so that a row may have several labels, or
        none; default None: any.
    softmax: Whether callers get the softmax of its last axis; default False.
    sigmoid: Whether callers get the sigmoid of its numbers; default False.
    round: Decimal places of its numbers, after softmax or sigmoid; default None: as they are.
    detections: It is boxes, of objects found in pictures; default None: it is none.
    """

    labels: tuple[str, ...] | str | None = None
    top: int | None = None
    threshold: float | None = None
    softmax: bool = False
    sigmoid: bool = False
    round: int | None = None
    detections: DetectionOutput | None = None


InputConfigs = Mapping[str, InputConfig]
OutputConfigs = Mapping[str, OutputConfig]


@with_config(ConfigDict(extra="forbid", allow_inf_nan=False))
@dataclass(frozen=True, slots=True)
class ProcessingConfig:
    """What a file says of inputs and outputs, by their names; default: nothing."""

    inputs: InputConfigs = field(default_factory=dict)
    outputs: OutputConfigs = field(default_factory=dict)


PROCESSING_RANGES: Mapping[str, Range] = {
    "inputs.*.image.size.*": Range(1, 16_384),
    "inputs.*.image.shorter_side": Range(1, 16_384),
    "inputs.*.audio.sample_rate": Range(100, 768_000),
    "inputs.*.audio.channels": Range(1, 64),
    "inputs.*.audio.max_seconds": Range(0.001, 86_400),
    "inputs.*.max_length": Range(1, MOST_LENGTH),
    "outputs.*.top": Range(1, MOST_LENGTH),
    "outputs.*.round": Range(0, 15),
    "outputs.*.detections.size.*": Range(1, 1 << 20),
    "outputs.*.detections.top": Range(1, MOST_LENGTH),
    "outputs.*.detections.scores": Range(0, MOST_LENGTH),
    "outputs.*.detections.classes": Range(0, MOST_LENGTH),
}
