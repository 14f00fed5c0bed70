"""A picture or a text to its label, as a program of one's own does it; each server uses it.

WORK is `picture` or `text`, MODEL names the file of the network, TOKENIZER that of the tokenizer.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import onnxruntime as ort

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


class Work:
    """The session, and what is done before and after its runs."""

    def __init__(self) -> None:
        model = os.environ["MODEL"]
        self.session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])

    def label(self, sent: Any) -> dict[str, object]:
        """Prepare, run, name."""
        scores = softmax(self.session.run(None, self.feeds(sent))[0][0])
        best = int(scores.argmax())
        return {"label": f"class {best}", "score": float(scores[best]), "scores": scores.tolist()}

    def feeds(self, sent: Any) -> dict[str, np.ndarray]:
        """The network's inputs."""
        raise NotImplementedError


class Pictures(Work):
    """Takes an image of Pillow's."""

    def __init__(self) -> None:
        super().__init__()
        transforms = torchvision_transforms()
        self.transform = transforms.Compose([
            transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ])  # fmt: skip

    def feeds(self, sent: Any) -> dict[str, np.ndarray]:
        return {"image": self.transform(sent.convert("RGB")).numpy()[None]}


class Texts(Work):
    """Takes a string."""

    def __init__(self) -> None:
        from tokenizers import Tokenizer  # noqa: PLC0415 - where it is used

        super().__init__()
        self.tokenizer = Tokenizer.from_file(os.environ["TOKENIZER"])
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(512)

    def feeds(self, sent: Any) -> dict[str, np.ndarray]:
        made = self.tokenizer.encode(sent)
        return {
            "input_ids": np.array([made.ids], np.int64),
            "attention_mask": np.array([made.attention_mask], np.int64),
        }


def torchvision_transforms() -> Any:
    """torchvision's transforms. PyPI's wheel is for CUDA: with a torch for the CPU it lacks two
    operators, which transforms do not need."""
    import torch  # noqa: PLC0415 - where it is used

    torch.set_num_threads(1)  # several requests at once; else they wait for each other's threads
    try:
        from torchvision import transforms  # noqa: PLC0415
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        Work.library = library  # or it is undone
        from torchvision import transforms  # noqa: PLC0415
    return transforms


def softmax(scores: np.ndarray) -> np.ndarray:
    exact = np.exp(scores - scores.max())
    return exact / exact.sum()


def make() -> Work:
    """Return the one that WORK asks for."""
    return Pictures() if os.environ["WORK"] == "picture" else Texts()
