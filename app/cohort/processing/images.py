"""Picture inputs: convert files to pixels of the model's size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from math import prod
from typing import Any

import numpy as np
from PIL import Image

from cohort.errors import InvalidInput, quoted
from cohort.processing.picture_files import PICTURE_KINDS, BadPicture, decode_picture, picture_bytes
from cohort.processing.picture_shapes import Pixels, pixels_of
from cohort.processing.sent_files import file_bytes
from cohort.processing.steps import Check, StepContext, files_spec
from cohort.repository import ImageInput
from cohort.tensors import Array, Arrays

MAX_BYTES = 1 << 30
"""Maximum bytes of the pixels that one request passes to the model."""


MAX_CROP_RATIO = 16
"""Maximum ratio of resized to wanted pixels, to resize a whole picture before it is cropped.

If the ratio is larger, only the middle is resized. Some values then differ by 1/255, because Pillow
uses single precision for that.
"""


class ImageStep:
    """A conversion of picture files to pixels. Implements `Step`. Raises LoadFailed."""

    def __init__(self, context: StepContext) -> None:
        config = context.config.image
        if config is None:
            raise context.problem("image is missing")
        model = context.model_input()
        self._pixels = pixels_of(context, model, config)
        self._shorter = _shorter_side(context, config, self._pixels)
        self._name = context.name
        rows = model.shape[0] if model.shape else None
        self.spec = replace(files_spec(context.name), shape=("N" if rows is None else rows,))
        self.fills: Sequence[str] = [context.name]
        self._scale, self._offset = _normalization(context, config, self._pixels)
        count = rows if isinstance(rows, int) else 1
        self.example: Array = np.array([_example(self._pixels)] * count, np.object_)
        self.description = self._describe(config)

    def _describe(self, config: ImageInput) -> str:
        pixels, shorter = self._pixels, self._shorter
        what = "it" if shorter is None else f"its shorter side becomes {shorter}, and the middle"
        values = "from 0 to 255" if pixels.dtype == np.uint8 else "from 0 to 1"
        if config.mean or config.std:
            mean, std = list(config.mean or [0]), list(config.std or [1])
            values += f", less mean {mean}, divided by std {std}"
        return (
            f"a picture ({PICTURE_KINDS}): {what} becomes "
            f"{pixels.height} x {pixels.width} pixels of "
            f"{pixels.channels}, {values}"
        )

    def is_short(self, values: Array) -> bool:
        """Return True if there are no pictures."""
        return not values.size

    def prepared_bytes(self, values: Array, check: Check) -> int:
        """Return the bytes of all pixels, plus those to decode the largest picture.

        Raises InvalidInput.
        """
        pixels, most = self._pixels, 0
        made = values.size * pixels.size
        if made > MAX_BYTES:
            raise InvalidInput(
                f"input {quoted(self._name)}: {values.size} pictures need {pixels.size:,} bytes "
                f"each; the limit per request is {MAX_BYTES:,} bytes"
            )
        for row, element in enumerate(values.tolist()):
            check()
            try:
                size, side = picture_bytes(file_bytes(element, self._name, row), check)
            except BadPicture as error:
                raise self._wrong(row, error) from None
            most = max(most, size + 4 * side * max(pixels.width, pixels.height))
        return made + most + 8 * pixels.height * pixels.width * 4

    def prepare(self, values: Array, check: Check) -> Arrays:
        """Return the model's input. Raises InvalidInput, which names the row."""
        pixels = self._pixels
        made = np.empty((values.size, *pixels.shape), pixels.dtype)
        mode = "L" if pixels.channels == "grey" else "RGB"
        for row, element in enumerate(values.tolist()):
            check()
            try:
                picture = decode_picture(file_bytes(element, self._name, row), mode, check)
            except BadPicture as error:
                raise self._wrong(row, error) from None
            check()
            self._fill(made[row], resized(picture, pixels.height, pixels.width, self._shorter))
        return {self._name: made}

    def _fill(self, into: Any, picture: Image.Image) -> None:
        """Fill one channel at a time: numpy needs three times as long for interleaved channels."""
        pixels = self._pixels
        values = np.asarray(picture).reshape(pixels.height, pixels.width, -1)
        if pixels.channels == "bgr":
            values = values[..., ::-1]
        if self._scale is None:
            into[...] = pixels.arranged(values)
            return
        for channel, plane in enumerate(pixels.planes(into)):
            scaled = values[..., channel] * self._scale[channel]
            scaled += self._offset[channel]
            plane[...] = scaled

    def _wrong(self, row: int, error: BadPicture) -> InvalidInput:
        return InvalidInput(
            f"input {quoted(self._name)} row {row}: expected a picture ({PICTURE_KINDS}), "
            f"got {error}"
        )


def resized(picture: Image.Image, height: int, width: int, shorter: int | None) -> Image.Image:
    """Resize a picture as `torchvision.transforms.Resize` and `CenterCrop` do.

    shorter: The length of the shorter side before the middle is cropped; None: no crop.
    """
    bilinear = Image.Resampling.BILINEAR
    if shorter is None:
        return picture.resize((width, height), bilinear)
    old_width, old_height = picture.size
    short, long = sorted(picture.size)
    longer = int(shorter * long / short)
    whole = (shorter, longer) if old_width <= old_height else (longer, shorter)
    left = round((whole[0] - width) / 2)
    top = round((whole[1] - height) / 2)
    if prod(whole) <= MAX_CROP_RATIO * width * height:
        return picture.resize(whole, bilinear).crop((left, top, left + width, top + height))
    across, down = old_width / whole[0], old_height / whole[1]
    right = min((left + width) * across, old_width)
    bottom = min((top + height) * down, old_height)
    return picture.resize((width, height), bilinear, (left * across, top * down, right, bottom))


def _shorter_side(context: StepContext, config: ImageInput, pixels: Pixels) -> int | None:
    if config.resize == "stretch":
        if config.shorter_side is not None:
            raise context.problem("image.shorter_side is for resize: shorter_side_then_crop")
        return None
    largest = max(pixels.height, pixels.width)
    shorter = config.shorter_side or largest
    if shorter < largest:
        raise context.problem(
            f"image.shorter_side is {shorter}, and the middle is {pixels.height} x {pixels.width}"
        )
    return shorter


def _normalization(context: StepContext, config: ImageInput, pixels: Pixels) -> tuple[Any, Any]:
    """Return the factor and the summand, per channel, for values from 0 to 255.

    Both are None if values stay unchanged. Raises LoadFailed.
    """
    if pixels.dtype == np.uint8:
        if config.mean is not None or config.std is not None:
            raise context.problem("image.mean and std are for floats, but the model expects UINT8")
        return None, None
    count = 1 if pixels.channels == "grey" else 3
    for key, values in (("mean", config.mean), ("std", config.std)):
        if values is not None and len(values) not in {1, count}:
            raise context.problem(
                f"image.{key} has {len(values)} numbers, and the picture has {count} channels"
            )
    mean = np.array(config.mean or [0.0])
    std = np.array(config.std or [1.0])
    if not (np.isfinite(mean).all() and np.isfinite(std).all() and (std > 0).all()):
        raise context.problem("image.mean and std must be numbers, and std > 0")
    if (mean > 1).any():
        raise context.problem(
            f"image.mean has {mean.max():g}, and values are from 0 to 1 before it is subtracted: "
            "divide mean and std by 255"
        )
    scale, offset = 1 / (255 * std), -mean / std
    shape = (count,)
    return (
        np.broadcast_to(scale, shape).astype(np.float32),
        np.broadcast_to(offset, shape).astype(np.float32),
    )


def _example(pixels: Pixels) -> bytes:
    """Return a PNG file of a gradient from dark to bright, of the model's size, at most 64 x 64."""
    height, width = min(pixels.height, 64), min(pixels.width, 64)
    file = BytesIO()
    Image.linear_gradient("L").resize((width, height)).save(file, "PNG")
    return file.getvalue()
