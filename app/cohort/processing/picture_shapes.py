"""The size, channels and axis order of the pictures that a model accepts."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np

from cohort.processing.steps import StepContext
from cohort.repository import ImageInput
from cohort.tensors import TensorSpec

Layout = Literal["nchw", "nhwc"]
Size = int | str | None

_DATATYPES = ("FP32", "FP16", "FP64", "UINT8")


@dataclass(frozen=True, slots=True)
class Pixels:
    """The form of the pixels of one picture that a model accepts.

    flat: True if there is one channel, without an axis for channels.
    """

    height: int
    width: int
    channels: Literal["rgb", "bgr", "grey"]
    layout: Layout
    dtype: np.dtype[np.generic]
    flat: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row."""
        if self.flat:
            return self.height, self.width
        count = 1 if self.channels == "grey" else 3
        if self.layout == "nchw":
            return count, self.height, self.width
        return self.height, self.width, count

    @property
    def size(self) -> int:
        """The bytes of one row."""
        return prod(self.shape) * self.dtype.itemsize

    def arranged(self, values: Any) -> Any:
        """Return pixels [height, width, channels] with the axes of a row."""
        if self.flat:
            return values[..., 0]
        return values.transpose(2, 0, 1) if self.layout == "nchw" else values

    def planes(self, row: Any) -> list[Any]:
        """Return the channels of a row, each [height, width]."""
        if self.flat:
            return [row]
        return list(row if self.layout == "nchw" else row.transpose(2, 0, 1))


def pixels_of(context: StepContext, model: TensorSpec, config: ImageInput) -> Pixels:
    """Return the form of pixels that a model accepts, from its shape and the config.

    Raises LoadFailed, which states both, if they do not fit.
    """
    if model.datatype not in _DATATYPES:
        raise context.problem(
            f"image gives {', '.join(_DATATYPES)}, but the model expects {model.datatype}"
        )
    shape = model.shape or (None,) * 4
    flat = len(shape) == 3
    if len(shape) not in {3, 4}:
        raise context.problem(
            "image gives [N, channels, height, width], [N, height, width, channels] or, in grey, "
            f"[N, height, width], but the model expects {model.shape_text}"
        )
    layout = "nchw" if flat else _layout(context, model, shape, config)
    if flat:
        count: Size = 1
        sides: tuple[Size, ...] = shape[1:]
    elif layout == "nchw":
        count, sides = shape[1], shape[2:]
    else:
        count, sides = shape[3], shape[1:3]
    if isinstance(count, int) and count not in {1, 3}:
        raise context.problem(
            f"image gives 1 or 3 channels, but the model expects {count}, shape {model.shape_text}"
        )
    channels = config.channels or ("grey" if count == 1 else "rgb")
    given = 1 if channels == "grey" else 3
    if isinstance(count, int) and count != given:
        raise context.problem(
            f"image.channels {channels} gives {given} channels, but the model expects {count}, "
            f"shape {model.shape_text}"
        )
    height, width = _size(context, model, sides, config)
    return Pixels(height, width, channels, layout, model.dtype, flat)


def _layout(
    context: StepContext, model: TensorSpec, shape: tuple[Size, ...], config: ImageInput
) -> Layout:
    if config.layout is not None:
        return config.layout
    if shape[1] in {1, 3}:
        return "nchw"
    if shape[3] in {1, 3}:
        return "nhwc"
    if isinstance(shape[1], int) or isinstance(shape[3], int):
        raise context.problem(
            f"image gives 1 or 3 channels, but the model expects shape {model.shape_text}"
        )
    raise context.problem(
        f"image.layout: set nchw or nhwc; the model's shape {model.shape_text} does not fix it"
    )


def _size(
    context: StepContext, model: TensorSpec, sides: tuple[Size, ...], config: ImageInput
) -> tuple[int, int]:
    if config.size is None:
        height, width = sides
        if not isinstance(height, int) or not isinstance(width, int):
            raise context.problem(
                f"image.size: set [height, width]; the model's shape {model.shape_text} does not "
                "fix them"
            )
        return height, width
    if len(config.size) != 2:
        raise context.problem(f"image.size is [height, width], got {list(config.size)}")
    for name, wanted, side in zip(("height", "width"), config.size, sides, strict=True):
        if isinstance(side, int) and side != wanted:
            raise context.problem(
                f"image.size {list(config.size)} does not fit the model's shape "
                f"{model.shape_text}: {name} {wanted} is not {side}"
            )
    return config.size[0], config.size[1]
