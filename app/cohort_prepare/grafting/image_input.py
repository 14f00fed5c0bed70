"""`add_image_input`: an input for the bytes of a PNG file, or raw pixels.

JPEG is not supported: the decoder of onnxruntime-extensions 0.15.2 kills the process on bytes that
are not a complete JPEG (#1094, #1096). So the decoder only gets data that starts as a PNG with an
allowed size. Other data is read as raw pixels of the model's size, and rejected if its number of
bytes differs.
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from onnx import TensorProto, helper
from PIL import Image

from cohort.errors import LoadFailed
from cohort.processing.images import ImageStep
from cohort.processing.picture_shapes import Pixels, pixels_of
from cohort.processing.steps import StepContext
from cohort.repository import ImageInput, InputConfig
from cohort.tensors import Array
from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.grafting.grafted import (
    CONFIG,
    LIBRARY,
    Grafted,
    Nodes,
    before_alone,
    check_graftable,
    check_same,
    graft,
    only_one,
    opened,
    write_grafted,
)
from cohort_prepare.onnx_files import IMAGE_OPERATORS, read_onnx, serving_options, write_onnx_to

PNG = b"\x89PNG\r\n\x1a\n"
PNG_HEAD = 24
"""Bytes of a PNG up to the end of width and height."""

MAX_PIXELS = 50_000_000
"""Limit, since a PNG of a few kilobytes may declare any size."""

CLOSE = 8 / 255
"""Allowed pixel difference on noise. Pillow rounds between the two axes. In ONNX Runtime, the last
column is up to 5/255 off if an image becomes much smaller, and all others 1/255."""

LUMA = (0.299, 0.587, 0.114)

_ONNX = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16,
         "float64": TensorProto.DOUBLE, "uint8": TensorProto.UINT8}  # fmt: skip


def add_image_input(
    before: Path, out: Path, *, image: ImageInput, name: str = "image", of: str | None = None
) -> Grafted:
    """Write the model with an input of bytes in place of a pixel input.

    image: Preprocessing, as in `inputs.<input>.image` of config.yaml.
    name: Name of the new input, UINT8 [bytes].
    of: The model's pixel input; default None: its only one.

    Raises Misused and Rejected.
    """
    model = read_onnx(before)
    check_graftable(model)
    old = opened(before, serving_options(model))
    wanted = only_one([one.name for one in old.inputs], of, "input")
    specs = {one.name: one for one in old.inputs}
    context = StepContext(wanted, InputConfig(image=image), specs, before.parent)
    try:
        step, pixels = ImageStep(context), pixels_of(context, specs[wanted], image)
    except LoadFailed as error:
        raise Misused(str(error).replace("inputs.", "input ", 1)) from error
    nodes = _nodes(name, wanted, pixels, image)
    given = helper.make_tensor_value_info(name, TensorProto.UINT8, ["bytes"])
    whole = graft(model, nodes, given, [wanted], IMAGE_OPERATORS)
    what = f"{name}: a PNG, or {pixels.height} x {pixels.width} raw pixels"
    write_grafted(whole, before, out, "add_image_input", what, {"input": wanted})
    new = opened(out, LIBRARY)
    with TemporaryDirectory(prefix="cohort-") as folder:
        path = Path(folder) / "graft.onnx"
        write_onnx_to(before_alone(model, nodes, given, [wanted], IMAGE_OPERATORS), path)
        alone = opened(path, LIBRARY)
        furthest = 0.0
        for file in _pictures(pixels):
            sent = np.frombuffer(file, np.uint8)
            (made,) = alone.run({name: sent})
            if file.startswith(PNG):
                expected = step.prepare(np.array([file], np.object_), lambda: None)[wanted]
                furthest = max(furthest, _distance(made, expected, image))
            if len(old.inputs) == 1:
                check_same(old, new, {name: sent}, {wanted: made})
    if furthest > CLOSE:
        raise Rejected(
            f"pixels differ by up to {furthest * 255:.1f} of 255 from the server's preprocessing"
        )
    example = {name: np.frombuffer(_pictures(pixels)[0], np.uint8)}
    findings = {"input": name, "of": wanted, "furthest_of_255": round(furthest * 255, 3)}
    return Grafted(what, findings, CONFIG, example)


def _distance(made: Array, expected: Array, image: ImageInput) -> float:
    """Return the largest difference, on a scale from 0 to 1."""
    scale = 255.0 if made.dtype == np.uint8 else 1 / max(image.std or (1.0,))
    return float(np.abs(made.astype(float) - expected.astype(float)).max()) / scale


def _pictures(pixels: Pixels) -> list[bytes]:
    """Make PNG files of several sizes, colours and kinds, and raw pixels of the model's size."""
    random = np.random.default_rng(0)
    height, width = pixels.height, pixels.width
    sizes = [(height, width), (2 * height + 3, 3 * width + 1), (height // 2 + 1, width // 2 + 2)]
    files = []
    for number, (down, across) in enumerate(sizes):
        smooth = Image.linear_gradient("L").resize((across, down))
        noise = random.integers(0, 256, (down, across, 3), np.uint8)
        mixed = np.asarray(smooth)[..., None] // 2 + noise // 2
        for mode in ("RGB", "L")[: 2 - number % 2]:
            file = BytesIO()
            Image.fromarray(mixed.astype(np.uint8)).convert(mode).save(file, "PNG")
            files.append(file.getvalue())
    return [*files, random.integers(0, 256, height * width * 3, np.uint8).tobytes()]


def _nodes(name: str, wanted: str, pixels: Pixels, image: ImageInput) -> Nodes:
    nodes = Nodes("cohort_image")
    rgb = _decoded(nodes, name, pixels)
    planes = nodes.add("Transpose", _cast(nodes, rgb), perm=[2, 0, 1])
    planes = nodes.add("Unsqueeze", planes, nodes.weight([0]))
    if pixels.channels == "grey":
        weights = nodes.weight(np.reshape(LUMA, (1, 3, 1, 1)), np.float32)
        weighted = nodes.add("Mul", planes, weights)
        planes = nodes.add("ReduceSum", weighted, nodes.weight([1]), keepdims=1)
        planes = nodes.add("Round", planes)
    elif pixels.channels == "bgr":
        planes = nodes.add("Gather", planes, nodes.weight([2, 1, 0]), axis=1)
    planes = _resized(nodes, planes, pixels, image)
    if pixels.dtype != np.uint8:
        std = np.array(image.std or [1.0], np.float64)
        mean = np.array(image.mean or [0.0], np.float64)
        shape = (1, -1, 1, 1)
        scale = nodes.weight((1 / (255 * std)).reshape(shape), np.float32)
        offset = nodes.weight((-mean / std).reshape(shape), np.float32)
        planes = nodes.add("Add", nodes.add("Mul", planes, scale), offset)
    if pixels.flat:
        planes = nodes.add("Squeeze", planes, nodes.weight([1]))
    elif pixels.layout == "nhwc":
        planes = nodes.add("Transpose", planes, perm=[0, 2, 3, 1])
    nodes.nodes.append(
        helper.make_node("Cast", [planes], [wanted], name="cohort_image/given",
                         to=_ONNX[pixels.dtype.name])
    )  # fmt: skip
    return nodes


def _cast(nodes: Nodes, value: str, kind: int = TensorProto.FLOAT) -> str:
    name = nodes.name()
    nodes.nodes.append(helper.make_node("Cast", [value], [name], name=f"{name}_cast", to=kind))
    return name


def _decoded(nodes: Nodes, name: str, pixels: Pixels) -> str:
    """Decode a PNG of allowed size, or raw pixels, to RGB [height, width, 3]."""
    padded = nodes.add("Concat", name, nodes.weight([0] * PNG_HEAD, np.uint8), axis=0)
    head = _cast(nodes, nodes.add("Slice", padded, nodes.weight([0]), nodes.weight([PNG_HEAD])),
                 TensorProto.INT64)  # fmt: skip
    begin = nodes.add("Slice", head, nodes.weight([0]), nodes.weight([len(PNG)]))
    differs = nodes.add("Abs", nodes.add("Sub", begin, nodes.weight(list(PNG))))
    differs = nodes.add("ReduceSum", differs, keepdims=0)
    is_png = nodes.add("Equal", differs, nodes.weight(0))
    sides = nodes.add("Slice", head, nodes.weight([PNG_HEAD - 8]), nodes.weight([PNG_HEAD]))
    sides = nodes.add("Reshape", sides, nodes.weight([2, 4]))
    sides = nodes.add("Mul", sides, nodes.weight([1 << 24, 1 << 16, 1 << 8, 1]))
    sides = nodes.add("ReduceSum", sides, nodes.weight([1]), keepdims=0)
    # Check each side before their product, which may exceed 64 bits.
    small = nodes.add("ReduceMax", sides, keepdims=0)
    small = nodes.add("LessOrEqual", small, nodes.weight(MAX_PIXELS))
    area = nodes.add("ReduceProd", sides, keepdims=0)
    fits = nodes.add("LessOrEqual", area, nodes.weight(MAX_PIXELS))
    good = nodes.add("And", is_png, nodes.add("And", small, fits))
    return nodes.add("If", good, then_branch=_png(name), else_branch=_raw(name, pixels))


def _png(name: str) -> onnx.GraphProto:
    """Make the graph of the PNG decoder, which returns BGR."""
    made = helper.make_tensor_value_info("cohort_image/png", TensorProto.UINT8, ["H", "W", 3])
    order = helper.make_tensor("cohort_image/order", TensorProto.INT64, [3], [2, 1, 0])
    nodes = [
        helper.make_node("DecodeImage", [name], ["cohort_image/bgr"], domain=IMAGE_OPERATORS),
        helper.make_node("Gather", ["cohort_image/bgr", order.name], [made.name], axis=2),
    ]
    return helper.make_graph(nodes, "png", [], [made], [order])


def _raw(name: str, pixels: Pixels) -> onnx.GraphProto:
    shape = [pixels.height, pixels.width, 3]
    made = helper.make_tensor_value_info("cohort_image/raw", TensorProto.UINT8, shape)
    sizes = helper.make_tensor("cohort_image/sizes", TensorProto.INT64, [3], shape)
    node = helper.make_node("Reshape", [name, sizes.name], [made.name], name="png_or_raw_pixels")
    return helper.make_graph([node], "raw", [], [made], [sizes])


def _resized(nodes: Nodes, planes: str, pixels: Pixels, image: ImageInput) -> str:
    """Resize planes [1, channels, height, width] to the model's size, rounded as in Pillow."""
    wanted = nodes.weight([pixels.height, pixels.width])
    sides = nodes.add("Shape", planes, start=2, end=4)
    channels = nodes.add("Shape", planes, start=0, end=2)
    target = wanted
    if image.resize == "shorter_side_then_crop":
        shorter = nodes.weight([image.shorter_side or max(pixels.height, pixels.width)])
        short = nodes.add("ReduceMin", sides, keepdims=1)
        target = nodes.add("Div", nodes.add("Mul", sides, shorter), short)
    sizes = nodes.add("Concat", channels, target, axis=0)
    planes = nodes.add(
        "Resize", planes, "", "", sizes, mode="linear", antialias=1,
        coordinate_transformation_mode="half_pixel",
    )  # fmt: skip
    planes = nodes.add("Round", planes)
    bounds = nodes.weight(0.0, np.float32), nodes.weight(255.0, np.float32)
    planes = nodes.add("Clip", planes, *bounds)
    if target is wanted:
        return planes
    spare = _cast(nodes, nodes.add("Sub", target, wanted))
    halves = nodes.add("Round", nodes.add("Mul", spare, nodes.weight([0.5], np.float32)))
    start = _cast(nodes, halves, TensorProto.INT64)
    end = nodes.add("Add", start, wanted)
    return nodes.add("Slice", planes, start, end, nodes.weight([2, 3]))
