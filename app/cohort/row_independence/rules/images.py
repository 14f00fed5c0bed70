"""Rules of operators on images, whose rows are along the first axis only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cohort.row_independence.axes import any_axes, apply_signature, follow
from cohort.row_independence.operation import MICROSOFT, Operation, rule
from cohort.row_independence.sizes import Poly, Size, is_whole, least, of_rows, quotient
from cohort.row_independence.tensors import INT32, Followed, Loss, Tensor, mixes, unknown

NCHWC = "com.microsoft.nchwc"
"""The domain of ONNX Runtime's blocked layout, in graphs optimized for one machine."""

AS_CHANNELS = "rows are channels or places of an image here, and it mixes these"


def _rounded(operation: Operation, size: Size, divisor: int, *, up: bool = False) -> Size:
    if isinstance(size, int):
        return -(-size // divisor) if up else size // divisor
    exact = quotient(size, divisor)
    name = "up" if up else "down"
    return operation.symbols.term(name, size, divisor, least=0) if exact is None else exact


def window_sizes(
    operation: Operation, spatial: Sequence[Size], kernel: Sequence[Any]
) -> dict[str, Size]:
    """Return the spatial sizes after a convolution or pool, by the labels `s0`, `s1`, …"""
    count = len(spatial)
    if len(kernel) != count:
        unknown("its kernel has other dimensions than the image")
    strides = operation.attribute("strides") or [1] * count
    dilations = operation.attribute("dilations") or [1] * count
    pads = operation.attribute("pads") or [0] * 2 * count
    auto, up = operation.attribute("auto_pad", "NOTSET"), bool(operation.attribute("ceil_mode", 0))
    found: dict[str, Size] = {}
    for at in range(count):
        size, long, stride = spatial[at], kernel[at], strides[at]
        if not isinstance(long, int):
            found[f"s{at}"] = operation.symbols.new()
        elif auto.startswith("SAME"):
            found[f"s{at}"] = _rounded(operation, size, stride, up=True)
        else:
            padding = 0 if auto == "VALID" else pads[at] + pads[at + count]
            room = size + padding - dilations[at] * (long - 1) - 1
            found[f"s{at}"] = _rounded(operation, room, stride, up=up) + 1
    return found


def _windowed(
    operation: Operation,
    image: Tensor,
    kernel: Sequence[Any],
    channels: Size,
    signature: str,
    dtype: int,
) -> Tensor:
    spatial = image.shape[2:]
    if operation.name == "NhwcMaxPool" or operation.attribute("channels_last", 0):
        spatial = image.shape[1:-1]
        signature = signature.replace("N c *", "N * c")
        signature = signature.replace("N c s*", "N s* c").replace("N o s*", "N s* o")
    sizes = {**window_sizes(operation, spatial, kernel), "o": channels}
    return apply_signature(operation, signature, sizes=sizes, dtypes=[dtype], why=AS_CHANNELS)[0]


@rule("Conv", "ConvInteger", "QLinearConv")
@rule("FusedConv", "QLinearConv", domain=MICROSOFT)
@rule("Conv", domain=NCHWC)
def _convolve(operation: Operation) -> Tensor:
    quantized = operation.name == "QLinearConv"
    image, filters = operation.required(0), operation.required(3 if quantized else 1)
    if quantized:
        dtype, more = operation.required(7).dtype, "=; =; =; =; =; =; =; ="
    elif operation.name == "ConvInteger":
        dtype, more = INT32, "=; =; ="
    else:  # the fourth input is added to the result
        dtype, more = image.dtype, "=; =; N o s*"
    kernel = operation.attribute("kernel_shape") or filters.shape[2:]
    signature = f"N c *; {more} -> N o s*"
    return _windowed(operation, image, kernel, filters.shape[0], signature, dtype)


@rule("ConvTranspose")
def _transposed(operation: Operation) -> Tensor:
    image, filters = operation.required(0), operation.required(1)
    count = image.rank - 2
    kernel = operation.attribute("kernel_shape") or filters.shape[2:]
    strides = operation.attribute("strides") or [1] * count
    dilations = operation.attribute("dilations") or [1] * count
    more = operation.attribute("output_padding") or [0] * count
    pads = operation.attribute("pads") or [0] * 2 * count
    sizes: dict[str, Size] = {"o": filters.shape[1] * operation.attribute("group", 1)}
    if wanted := operation.attribute("output_shape"):
        sizes |= {f"s{at}": size for at, size in enumerate(wanted[-count:])}
    elif operation.attribute("auto_pad", "NOTSET") == "NOTSET":
        for at in range(count):
            if isinstance(kernel[at], int):
                own = (kernel[at] - 1) * dilations[at] + 1 + more[at] - pads[at] - pads[at + count]
                sizes[f"s{at}"] = (image.shape[at + 2] - 1) * strides[at] + own
    return apply_signature(operation, "N c *; =; = -> N o s*", sizes=sizes, why=AS_CHANNELS)[0]


@rule("MaxPool", "AveragePool", "LpPool")
@rule("QLinearAveragePool", "NhwcMaxPool", domain=MICROSOFT)
@rule("MaxPool", "AveragePool", domain=NCHWC)
def _pool(operation: Operation) -> list[Followed]:
    image = operation.first()
    kernel = operation.attribute("kernel_shape") or ()
    signature = "N c *; =; =; =; = -> N c s*"
    found = _windowed(operation, image, kernel, image.shape[1], signature, image.dtype)
    if operation.outputs > 1 and image.rows:
        place = operation.walk.lost(Loss.MIXES, "the places that it gives count over all rows")
        return [found, place]
    return [found, replace(found, dtype=7)]


@rule("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
@rule("QLinearGlobalAveragePool", domain=MICROSOFT)
@rule("GlobalAveragePool", "GlobalMaxPool", domain=NCHWC)
def _pool_all(operation: Operation) -> Tensor:
    last = operation.attribute("channels_last", 0)
    signature = "N * c; =; =; =; = -> N 1* c" if last else "N c *; =; =; =; = -> N c 1*"
    return apply_signature(operation, signature, why=AS_CHANNELS)[0]


@rule("ReorderInput", "ReorderOutput", domain=NCHWC)
def _reorder(operation: Operation) -> Tensor:
    channels = operation.attribute("channels")
    sizes = {"o": channels} if channels else {}
    signature = "N c * -> N o *"
    if operation.attribute("channels_last", 0):
        signature = "N * c -> N o *" if operation.name == "ReorderInput" else "N c * -> N * o"
    return apply_signature(operation, signature, sizes=sizes, why=AS_CHANNELS)[0]


@rule("DepthToSpace", "SpaceToDepth")
def _blocks(operation: Operation) -> Tensor:
    image, block = operation.first(), operation.attribute("blocksize", 1)
    if image.rank != 4:
        unknown("it takes images only")
    _, channels, height, width = image.shape
    if operation.name == "DepthToSpace":
        depth = quotient(channels, block * block)
        sizes = {
            "o": operation.symbols.new() if depth is None else depth,
            "p": height * block,
            "q": width * block,
        }
    else:
        sizes = {
            "o": channels * block * block,
            "p": _rounded(operation, height, block),
            "q": _rounded(operation, width, block),
        }
    return apply_signature(operation, "N c h w -> N o p q", sizes=sizes, why=AS_CHANNELS)[0]


@rule("GridSample")
def _sample(operation: Operation) -> Tensor:
    image, grid = operation.required(0), operation.required(1)
    spatial = [f"x{at}" for at in range(image.rank - 2)]
    picked = [f"Y{at}" for at in range(grid.rank - 2)]
    return follow(
        operation, [(image, ["N", "C", *spatial]), (grid, ["N", *picked, "point"])],
        [["N", "C", *picked]], why=AS_CHANNELS,
    )[0]  # fmt: skip


@rule("Upsample", domain=NCHWC)
def _upsample_blocks(operation: Operation) -> Tensor:
    rows = operation.first().rows
    if rows and rows.axis:
        mixes(AS_CHANNELS)
    return _resized(operation)


@rule("Resize", "Upsample")
def _resize(operation: Operation) -> Tensor:
    return _resized(operation)


def _resized(operation: Operation) -> Tensor:
    image = operation.first()
    if operation.attribute("coordinate_transformation_mode") == "tf_crop_and_resize":
        unknown("it crops")
    what, wanted = "its scale", None
    if "scales" in operation.attributes:
        scales = operation.attribute("scales")
    elif operation.name == "Upsample" or operation.version < 11:
        scales = operation.known(1, what)
    else:
        scales, wanted = operation.known(2, what) or None, operation.known(3, "its size") or None
    if scales is None and wanted is None:
        unknown("its size is not known")
    axes = [at % image.rank for at in operation.attribute("axes", range(image.rank))]
    stretch = operation.attribute("keep_aspect_ratio_policy", "stretch") == "stretch"
    labels, sizes = any_axes(image, letter="x"), dict[str, Size]()
    for axis, value in zip(axes, scales or wanted or (), strict=False):
        same = stretch and value == image.shape[axis] if scales is None else value == 1
        if not same and of_rows(value):
            mixes("a size of the image follows from the number of rows")
        if not same:
            sizes[f"x{axis}"] = _scaled(
                operation, image.shape[axis], value, of_scale=scales is not None, sure=stretch
            )
    labels = [label if label in sizes else label.upper() for label in labels]
    result = [f"to{label}" if label in sizes else label for label in labels]
    return follow(
        operation, [(image, labels)], [result], why="it gives the rows another number",
        sizes={f"to{label}": size for label, size in sizes.items()},
    )[0]  # fmt: skip


def _scaled(operation: Operation, size: Size, value: Any, *, of_scale: bool, sure: bool) -> Size:
    if not of_scale:
        known = sure and isinstance(value, int | Poly) and least(value) >= 0
        return value if known else operation.symbols.new()
    if is_whole(value):
        return size * int(value) if not isinstance(value, Poly) else operation.symbols.new()
    if isinstance(size, int) and isinstance(value, float):
        return math.floor(np.float32(size) * np.float32(value))  # rounds as ONNX Runtime does
    return operation.symbols.term("scaled", size, value, least=0)
