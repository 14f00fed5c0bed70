"""`inputs:` and `outputs:` in a model's config: conversions of requests and responses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import ConfigDict, with_config

from cohort.repository.schema import Range

METADATA = "metadata"
"""Instead of labels: use those in the model's file."""

MAX_LENGTH = 2**20


@dataclass(frozen=True, slots=True)
class ImageInput:
    """`inputs.<input>.image`: callers send image files.

    size: Height and width of the model's input; default None: those of its shape.
    resize: `stretch` changes the proportions; `shorter_side_then_crop` keeps them and crops the
        middle; default "stretch".
    shorter_side: Pixels of the shorter side before the crop; default None: the larger number of
        `size`.
    mean: Subtracted from each channel, with values from 0 to 1; default None: 0. An input of UINT8
        gets 0 to 255, without mean and std.
    std: Divisor of each channel, after mean; default None: 1.
    layout: Axes of the model's input; default None: nchw or nhwc, by its shape.
    channels: Order of the channels; default None: rgb, or grey if the model has one channel.
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
    """`inputs.<input>.audio`: callers send audio files.

    sample_rate: The model's sample rate in hertz; other sounds are resampled.
    channels: 1 fills [N, samples] with the mean of all channels; more fill [N, channels, samples];
        default 1.
    max_seconds: Maximum length of a sound; default 600.
    """

    sample_rate: int
    channels: int = 1
    max_seconds: float = 600.0


@dataclass(frozen=True, slots=True)
class StandardiseInput:
    """`inputs.<input>.standardise`: callers send raw numbers.

    mean: Subtracted from each number: one for all, or one for each column.
    std: Divisor after that, in the same form.
    """

    mean: float | tuple[float, ...]
    std: float | tuple[float, ...]


DatePart = Literal["year", "month", "day", "weekday", "day_of_year", "days", "hour", "minute"]


@dataclass(frozen=True, slots=True)
class InputConfig:
    """`inputs.<name>`: how callers' input becomes inputs of the model.

    image: Callers send an image; default None.
    audio: Callers send audio; default None.
    tokenizer: Callers send text for the model's tokenizer inputs, such as input_ids. The value
        names a tokenizer.json in the version's folder; default None.
    max_length: Maximum ids of a text; the rest is cut off; default None: that of tokenizer.json, or
        512.
    pairs: Each row is two texts, [N, 2]; default False.
    missing: Value for null and empty cells: a number, or a string for string inputs; default None:
        NaN for floats. By default, other inputs reject such requests.
    columns: Column names of a model's only input [N, columns]; default None: those in the model's
        metadata. A column may then be an input here, by its name.
    categories: Callers send a category, and the model gets its place in this list, from 0. The
        value is a list, or a file in the version's folder with one per line; default None: those in
        the metadata, if any.
    unknown: Value for an unknown category: one of the categories, a number for the model, or nan;
        default None: the request is rejected.
    one_hot: The model gets 1 for the category and 0 for the others, as [N, categories] or as
        columns NAME_CATEGORY (as pandas' get_dummies); default False: codes.
    standardise: Callers send raw numbers, and the model gets them standardised; default None: no
        change.
    date: Callers send a date in ISO 8601; default None. The model gets these parts as
        numbers, as [N, parts] or as columns NAME_PART. `weekday` is 0 on Mondays, and `days` count
        from 1970-01-01.
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
        """The kind of data that callers send: "image", "audio" or "text"; "" for an array."""
        if self.tokenizer is not None:
            return "text"
        return "image" if self.image is not None else "audio" if self.audio is not None else ""


@dataclass(frozen=True, slots=True)
class DetectionOutput:
    """`outputs.<output>.detections`: an output of boxes, returned as JSON objects.

    scores: Output with scores, one column or one per class; or a column number of this output.
    classes: Output with classes, or a column number of this output; default None: the class with
        the best score.
    format: Numbers of a box: corners, or a corner or the centre with width and height; default
        "xyxy".
    normalized: Boxes are relative to the image's width and height; default False: pixels.
    size: Height and width of the model's images, to return pixels as relative numbers; default
        None: keep pixels.
    threshold: Minimum score of an object; default None: any.
    top: Maximum objects of an image; default None: any number.
    labels: Class names, as `labels` of an output; default None: numbers. Further columns of scores
        are ignored, such as "no object".
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
    """`outputs.<name>`: how an output of the model becomes an output for callers.

    labels: Class names: a list, a file in the version's folder with one per line, or `metadata`
        (those of the model's file); default None.
    top: Number of best classes to name in each row; default None: one, or with a threshold all that
        reach it.
    threshold: Minimum score of a named class; default None: any.
    softmax: Return the softmax of the last axis; default False.
    sigmoid: Return the sigmoid of the numbers; default False.
    round: Decimal places, after softmax or sigmoid; default None: unchanged.
    detections: Return objects in images, from boxes; default None.
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
    """The conversions of inputs and outputs in a file, by their names; default: no conversions."""

    inputs: InputConfigs = field(default_factory=dict)
    outputs: OutputConfigs = field(default_factory=dict)


PROCESSING_RANGES: Mapping[str, Range] = {
    "inputs.*.image.size.*": Range(1, 16_384),
    "inputs.*.image.shorter_side": Range(1, 16_384),
    "inputs.*.audio.sample_rate": Range(100, 768_000),
    "inputs.*.audio.channels": Range(1, 64),
    "inputs.*.audio.max_seconds": Range(0.001, 86_400),
    "inputs.*.max_length": Range(1, MAX_LENGTH),
    "outputs.*.top": Range(1, MAX_LENGTH),
    "outputs.*.round": Range(0, 15),
    "outputs.*.detections.size.*": Range(1, 1 << 20),
    "outputs.*.detections.top": Range(1, MAX_LENGTH),
    "outputs.*.detections.scores": Range(0, MAX_LENGTH),
    "outputs.*.detections.classes": Range(0, MAX_LENGTH),
}
