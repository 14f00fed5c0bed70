"""Pictures for tests: made by Pillow, the same in every run."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from PIL import Image


def picture(width: int, height: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    """Soft patches with some grain, as a photograph has."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (max(height // 7, 1), max(width // 7, 1), 3), np.uint8)
    soft = np.asarray(Image.fromarray(coarse).resize((width, height))).astype(np.int16)
    grain = random.integers(-30, 30, (height, width, 3))
    return Image.fromarray(np.clip(soft + grain, 0, 255).astype(np.uint8)).convert(mode)


def saved(image: Image.Image, kind: str, **how: Any) -> bytes:
    """Return a file of it."""
    file = BytesIO()
    image.save(file, kind, **how)
    return file.getvalue()


def channel_means(
    shape: tuple[int | str, ...] = ("N", 3, 32, 48), *, datatype: int = TensorProto.FLOAT
) -> onnx.ModelProto:
    """`image` of a shape → `mean` FP32 [N, 3]: the mean of each channel, which comes second."""
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["image"], ["floats"], to=TensorProto.FLOAT),
            helper.make_node("ReduceMean", ["floats", "axes"], ["mean"], keepdims=0),
        ],
        "means",
        [info("image", datatype, shape)],
        [info("mean", TensorProto.FLOAT, [shape[0], shape[1]])],
        [helper.make_tensor("axes", TensorProto.INT64, [2], [2, 3])],
    )
    opsets = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)
