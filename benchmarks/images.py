"""From a JPEG to a label, by Cohort, FastAPI, BentoML and LitServe: `python -m benchmarks.images`.

Photographs of 640 x 480 are resized, cropped and normalized to [1, 3, 224, 224]. The network takes
next to no time, so that only the servers and the pictures cost time. The others use Pillow and
torchvision's transforms: see labelling.py.
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import rich_click as click
from onnx import TensorProto, helper, numpy_helper, save
from PIL import Image

from benchmarks import labelling

CONFIG = """\
inputs:
  image:
    image:
      {resize: shorter_side_then_crop, shorter_side: 256,
       mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}
outputs: {scores: {labels: labels.txt, softmax: true}}
"""


def write_model(folder: Path) -> Path:
    """Return a network of one pooling and one dense layer, with its config and labels."""
    random = np.random.default_rng(0)
    weights = random.standard_normal((147, 10)).astype(np.float32) / 20
    nodes = [
        helper.make_node("AveragePool", ["image"], ["p"], kernel_shape=[32, 32], strides=[32, 32]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "w"], ["scores"]),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "pictures",
        [info("image", TensorProto.FLOAT, ["N", 3, 224, 224])],
        [info("scores", TensorProto.FLOAT, ["N", 10])],
        [numpy_helper.from_array(weights, "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    version = folder / "pictures/1"
    version.mkdir(parents=True)
    save(model, version / "model.onnx")
    labels = "\n".join(f"class {number}" for number in range(10))
    (version / "labels.txt").write_text(labels, encoding="utf-8")
    (folder / "pictures/config.yaml").write_text(CONFIG, encoding="utf-8")
    return version / "model.onnx"


def photograph(width: int, height: int, seed: int) -> bytes:
    """Return a JPEG with soft patches and grain."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (height // 20, width // 20, 3), np.uint8)
    soft = np.asarray(Image.fromarray(coarse).resize((width, height))).astype(np.int16)
    pixels = np.clip(soft + random.integers(-12, 12, soft.shape), 0, 255).astype(np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=90)
    return file.getvalue()


@click.command()
@click.option("--callers", multiple=True, type=int, default=[1, 8], show_default=True)
@click.option("--rounds", default=5, show_default=True)
@click.option("--seconds", default=3.0, show_default=True, help="Length of a round.")
@click.option("--size", nargs=2, type=int, default=(640, 480), show_default=True)
@click.option("--only", multiple=True, help="The servers, by name; default: all.")
@click.option("--keep-all", is_flag=True, help="Keep rounds in which others used the machine.")
@click.option("--write", is_flag=True, help="Write results/images.md.")
def main(
    callers: tuple[int, ...], rounds: int, seconds: float, size: tuple[int, int],
    only: tuple[str, ...], keep_all: bool, write: bool,
) -> None:  # fmt: skip
    """Measure the servers in turns, and print a table."""
    folder = labelling.fresh("pictures")
    work = labelling.Work("picture", folder / "models", write_model(folder / "models"))
    sent = [photograph(*size, seed) for seed in range(8)]
    lines, run = labelling.measure(
        work, sent, callers, rounds=rounds, seconds=seconds, only=only, keep_all=keep_all
    )
    says = (
        f"JPEGs of {size[0]} x {size[1]}, {len(sent[0]) / 1024:.0f} KB, and their labels from a "
        f"network of one dense layer.\n{labelling.VERSIONS}, with Pillow and torchvision."
    )
    table = labelling.Table("a network of one dense layer", run, lines)
    labelling.show("images", "From a JPEG to its label", says, [table], write=write)


if __name__ == "__main__":
    main()
